"""Training over W ranks is training in one process: modes, mixtures, slices, recomputation, accumulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import SEED, Pair, naming, train_all
from support.workload import Workload
from support.worlds import worlds

# Each law on two ranks, on one (nothing is sharded), and on three, which no width divides; four only where more neighbours
# could matter.


def workload(me: Member, checkpointing: str | None = None) -> Workload:
    """Two blocks on two ranks; elsewhere one, since more ranks than cores make every collective slow."""
    return blocks.workload(checkpointing, count=2 if me.world == 2 else 1)


def plain(me: Member, mixtures: int) -> None:
    """Five steps: gathers are prefetched from the second on, replicas compared in the first three."""
    train_all(me, blocks.workload(), lambda d: plans.everything(d, mixtures), steps=5)


def accumulated(me: Member, no_sync: bool) -> None:
    train_all(me, workload(me), plans.everything, micros=3, no_sync=no_sync)


def recomputed_by_plan(me: Member, how: str, every: int) -> None:
    def recomputing(description):
        return {k: plans.recomputed(p, how, every) for k, p in plans.everything(description).items()}

    train_all(me, workload(me), recomputing)


def recomputed_by_user(me: Member, how: str) -> None:
    train_all(me, workload(me, how), plans.everything)


def all_at_once(me: Member) -> None:
    def recomputing(description):
        return {k: plans.recomputed(p, "regather", 2) for k, p in plans.everything(description).items()}

    train_all(me, workload(me), recomputing, micros=3, no_sync=True)


@pytest.mark.parametrize("world", worlds(1, 3, 4, more=(2,)))
def test_every_placement(ranks, world):
    ranks(plain, 6 if world == 2 else 3, world=world)


@pytest.mark.parametrize(("world", "no_sync"), [(2, True), (3, False)])
def test_accumulation_over_three_micro_batches(ranks, world, no_sync):
    ranks(accumulated, no_sync, world=world)


@pytest.mark.parametrize(
    ("world", "how", "every"), [(2, "hold", 2), (2, "regather", 1), (3, "hold", 1)]
)  # every second block gathered again: all_at_once
def test_blocks_that_the_plan_recomputes(ranks, world, how, every):
    ranks(recomputed_by_plan, how, every, world=world)


@pytest.mark.parametrize(("world", "how"), [(1, "reentrant"), (2, "reentrant"), (2, "non-reentrant")])
def test_blocks_that_the_user_recomputes(ranks, world, how):
    ranks(recomputed_by_user, how, world=world)


@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_recomputation_accumulation_and_no_sync_together(ranks, world):
    ranks(all_at_once, world=world)


def gathered_ahead(me: Member, prefetch: int) -> None:
    def ahead(description):
        return {k: replace(p, prefetch=prefetch) for k, p in plans.corners(description).items()}

    train_all(me, workload(me), ahead)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_other_depths_of_prefetching(ranks, prefetch):
    ranks(gathered_ahead, prefetch, world=2)


def single(me: Member, checkpointing: str | None, no_sync: bool) -> None:
    train_all(
        me,
        workload(me, checkpointing),
        plans.everything,
        dtype=torch.float32,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        micros=3 if no_sync else 1,
        no_sync=no_sync,
    )


@pytest.mark.parametrize(("world", "checkpointing"), [(1, None), (2, None), (4, "non-reentrant")])
def test_single_precision(ranks, world, checkpointing):
    ranks(single, checkpointing, checkpointing is None, world=world)


def trained(me: Member, mode: str) -> dict[str, torch.Tensor]:
    """Parameters after 5 steps in fp32, of a pair whose tolerance does not matter here."""
    pair = Pair(me, blocks.workload(), mode, dtype=torch.float32, tolerance=1e-3)
    with naming(mode):
        pair.train()
    return {name: value.clone() for name, value in pair.sharded.state_dict().items()}


def same_bits(me: Member) -> None:
    wanted = trained(me, "NO_SHARD")
    untrained = blocks.workload().model(SEED, torch.float32).state_dict()
    assert not torch.equal(untrained["head.weight"], wanted["head.weight"])
    for mode in ("SHARD_GRAD_OP", "FULL_SHARD"):
        for name, value in trained(me, mode).items():
            assert torch.equal(value, wanted[name]), f"{mode}: {name} differs from NO_SHARD"


@pytest.mark.parametrize("world", [1, 2])
def test_modes_agree_bit_for_bit_where_there_is_one_order_of_summation(ranks, world):
    ranks(same_bits, world=world)
