"""HYBRID_SHARD: sharded inside a line of ranks, replicated over the lines. Training is as in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.descriptions import describe_once
from support.pair import SEED, Pair, adamw, close, naming
from support.workload import Workload, vectors
from torch import nn

import osdp
from osdp.description.model_description import ModelDescription
from osdp.sharding.sharded_model import runtime_of


def hybrid(description: ModelDescription) -> osdp.Plan:
    return plans.apart(osdp.Plan.uniform(description, "HYBRID_SHARD"))


def mixture(description: ModelDescription, seed: int = 0) -> osdp.Plan:
    """All four modes, and slices, in one model: a third of the operators is HYBRID_SHARD."""
    dice = random.Random(seed)
    plan = plans.mixture(description, seed)
    chosen = dice.sample(list(plan.choices), k=max(1, len(plan.choices) // 3))
    plan = plan.replace({name: osdp.Choice("HYBRID_SHARD") for name in chosen})
    return plan if seed % 2 else plans.apart(plan)


CHOSEN = {
    "everywhere": hybrid,
    "few units": lambda d: osdp.Plan.uniform(d, "HYBRID_SHARD"),
    "mixture 0": mixture,
    "mixture 1": lambda d: mixture(d, 1),
}


def pairs(me: Member, per_host: int, workload: Workload | None = None, **options) -> Iterator[Pair]:
    """All of them on 2 x 2 ranks, two elsewhere."""
    for name, plan in list(CHOSEN.items())[:: 1 if (me.world, per_host) == (4, 2) else 2][:4]:
        with naming(name):
            yield Pair(me, workload or blocks.workload(count=1), plan, ranks_per_host=per_host, **options)


def train(me: Member, per_host: int, micros: int = 1, no_sync: bool = False) -> None:
    for pair in pairs(me, per_host):
        pair.train(steps=3, micros=micros, no_sync=no_sync)
        pair.evaluate()


@pytest.mark.parametrize(("world", "per_host"), [(4, 2), (4, 1), (3, 1), (2, 2), (1, 1)])
def test_every_shape_of_the_grid_trains_as_one_process(ranks, world, per_host):
    ranks(train, per_host, world=world)


@pytest.mark.parametrize("no_sync", [False, True])
def test_accumulation(ranks, no_sync):
    ranks(train, 2, 3, no_sync, world=4)


def recompute(me: Member, how: str) -> None:
    for plan in (hybrid, mixture):
        Pair(
            me, blocks.workload(), lambda d, plan=plan: plans.recomputed(plan(d), how), ranks_per_host=2
        ).train(steps=2)


@pytest.mark.parametrize("how", [pytest.param("hold", marks=pytest.mark.extras), "regather"])
def test_recomputed_blocks(ranks, how):
    ranks(recompute, how, world=4)


def freeze(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(("embed", "blocks.0")) and "norm" not in name)


def frozen(me: Member) -> None:
    for pair in pairs(me, 2, prepare=freeze):
        pair.train(steps=2)


def test_frozen_parameters(ranks):
    ranks(frozen, world=4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(tokens)))


def tied(me: Member) -> None:
    batch = lambda n: ((torch.randint(9, (n, 3)),), torch.randint(9, (n, 3)))  # noqa: E731
    for pair in pairs(me, 2, Workload(Tied, batch, blocks.surprise)):
        pair.train(steps=3)
        assert pair.sharded.head.weight is pair.sharded.embed.weight


def test_tied_parameters(ranks):
    ranks(tied, world=4)


def what_ranks_hold(me: Member) -> None:
    """Half of every parameter on each of 2 x 2 ranks; after training both copies of it are equal bit for bit."""
    pair = Pair(me, blocks.workload(), hybrid, dtype=torch.float32, ranks_per_host=2)
    pair.train(steps=3)
    sharded = runtime_of(pair.sharded)
    assert sharded.grid is not None
    assert sharded.grid.lines == ((0, 1), (2, 3))
    held = {}
    for name, parameter in pair.sharded.named_parameters():
        (piece,) = sharded.pieces(name)
        rows = next((n for n in sharded.full_shape(name) if n > 1), 1)
        assert sum(piece.global_offsets) == (me.rank % 2) * math.ceil(rows / 2)
        assert not piece.replicated
        held[name] = (piece.global_offsets, parameter.detach().clone())
    everyone = me.everywhere(held)
    for name, (offsets, value) in everyone[me.rank].items():
        twin_offsets, twin = everyone[(me.rank + 2) % 4][name]
        assert offsets == twin_offsets
        assert torch.equal(value, twin), name


def test_each_line_holds_one_copy(ranks):
    ranks(what_ranks_hold, world=4)


def clip(me: Member) -> None:
    for pair in pairs(me, 2):
        for step, (most, norm_type) in enumerate([(1e-3, 2.0), (0.5, 2.0), (0.01, math.inf)]):
            pair.backward(pair.data(step))
            wanted = nn.utils.clip_grad_norm_(pair.whole.parameters(), most, norm_type)
            close(osdp.clip_grad_norm_(pair.sharded, most, norm_type), wanted, 1e-9, f"norm at step {step}")
            pair.same_gradients()
            pair.update()
        pair.same_parameters()


def test_clipping_counts_each_row_once(ranks):
    ranks(clip, world=4)


def summon(me: Member) -> None:
    for pair in pairs(me, 2):
        pair.backward(pair.data(0))
        whole = dict(pair.whole.named_parameters())
        with osdp.summon_full_params(pair.sharded, with_grads=True), torch.no_grad():
            for name, parameter in pair.sharded.named_parameters():
                close(parameter, whole[name], 1e-9, name)
                close(parameter.grad, whole[name].grad, 1e-9, f"gradient of {name}")
                parameter.mul_(0.5)
        with torch.no_grad():
            for parameter in whole.values():
                parameter.mul_(0.5)
        pair.same_parameters()
        pair.update()
        pair.train(steps=1)


def test_summoned_parameters(ranks):
    ranks(summon, world=4)


WRITTEN: dict[str, dict] = {
    "hybrid": {"plan": hybrid, "ranks_per_host": 2},
    "mixture": {"plan": mixture, "ranks_per_host": 2},
    "full": {"plan": "FULL_SHARD"},
}


def write(me: Member, what: str, directory: Path) -> None:
    pair = Pair(me, blocks.workload(), **WRITTEN[what])
    pair.train(steps=2)
    osdp.save(pair.sharded, pair.sharded_optimizer, directory)
    state = pair.sharded.state_dict()
    if me.rank == 0:
        torch.save((state, pair.whole_optimizer.state_dict()), directory / "expected.pt")


def read(me: Member, what: str, directory: Path) -> None:
    pair = Pair(me, blocks.workload(), **WRITTEN[what])
    for model, optimizer in pair.both:
        osdp.load(model, optimizer, directory, process_group=me.group)
    expected, states = torch.load(directory / "expected.pt")
    for name, value in pair.sharded.state_dict().items():
        assert torch.equal(value, expected[name]), name
    for position, parameter in enumerate(pair.whole.parameters()):
        for key, value in pair.whole_optimizer.state[parameter].items():
            close(value, states["state"][position][key], 1e-9, key)
    pair.train(steps=2)


@pytest.mark.parametrize(
    ("writer", "reader", "worlds"),
    [
        ("hybrid", "full", (4, 3)),
        ("mixture", "hybrid", (4, 2)),
        ("hybrid", "mixture", (2, 4)),
    ],
)
def test_checkpoints_go_from_plan_to_plan(ranks, tmp_path, writer, reader, worlds):
    ranks(write, writer, tmp_path / "step", world=worlds[0])
    ranks(read, reader, tmp_path / "step", world=worlds[1])


def test_a_checkpoint_holds_every_row_once(ranks, tmp_path):
    ranks(write, "hybrid", tmp_path / "hybrid", world=4)
    ranks(write, "full", tmp_path / "full", world=4)
    sizes = [
        sum(p.stat().st_size for p in (tmp_path / which).glob("*.distcp")) for which in ("hybrid", "full")
    ]
    assert sizes[0] < 1.2 * sizes[1]
    model = blocks.workload().model(SEED + 1, torch.float64)
    osdp.load(model, adamw(model.parameters()), tmp_path / "hybrid")
    expected, _ = torch.load(tmp_path / "hybrid" / "expected.pt")
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def after_an_exception(me: Member) -> None:
    """Raised on all ranks in the middle of backward: nothing full is left, and training goes on."""
    pair = Pair(me, Workload(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), vectors(6, 4)), hybrid,
                ranks_per_host=2)  # fmt: skip

    def fail(module: nn.Module, gradient: object, output: object) -> None:
        raise ValueError("in the middle")

    handle = pair.sharded[1].register_full_backward_hook(fail)
    with contextlib.suppress(ValueError):
        pair.backward(pair.data(0))
        pytest.fail("the hook did not raise")
    handle.remove()
    assert runtime_of(pair.sharded).gathered_bytes() == 0
    for _, optimizer in pair.both:
        optimizer.zero_grad()
    pair.train(steps=2)


def test_after_an_exception_the_model_trains(ranks):
    ranks(after_an_exception, world=4)


def searched(me: Member) -> None:
    """A plan searched for two hosts runs where ranks stand on two, and is refused elsewhere."""
    model = blocks.workload().model(SEED, torch.float64)
    described = describe_once(model, *blocks.workload().data(0, 2, torch.float64)[0])
    found = osdp.search(
        described, memory="1GiB", world_size=4, hosts=2, modes="HYBRID_SHARD", batch_size=2, granularity=1
    )
    assert {c.mode for c in found.choices.values()} == {"HYBRID_SHARD"}
    Pair(me, blocks.workload(), found, ranks_per_host=2).train(steps=1)
    plan = osdp.Plan.loads(dataclasses.replace(found).dumps())
    before = [p.detach().clone() for p in model.parameters()]
    for per_host in (1, 4):
        with pytest.raises(osdp.PlanMismatchError, match=r"2 hosts.*run on"):
            osdp.fully_shard(model, plan, me.group, ranks_per_host=per_host)
    for old, parameter in zip(before, model.parameters(), strict=True):
        assert torch.equal(old, parameter)


def test_a_searched_plan_knows_how_many_hosts_it_is_for(ranks):
    ranks(searched, world=4)


def what_travels(me: Member) -> None:
    """Gathers send half of everything inside the line; reductions too, and then this rank's half over the column."""
    layers = Workload(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), vectors(8, 8))
    pair = Pair(me, layers, hybrid, ranks_per_host=2)
    runtime = runtime_of(pair.sharded).runtime
    pair.train(steps=4)  # the check of the optimizer's options is over
    runtime.reset_statistics()
    pair.backward(pair.data(5))
    counted = runtime.statistics()
    assert counted["reduced_bytes"] == 2 * (64 + 8) * 8
    assert counted["sent_bytes"] == counted["gathered_bytes"] / 2 + counted["reduced_bytes"]


def test_gradients_alone_cross_between_lines(ranks):
    ranks(what_travels, world=4)


def in_low_precision(me: Member) -> None:
    """bf16 parameters with fp32 sums: what FULL_SHARD computes, since a mean of means is the mean; fp16 sums too."""
    for policy, tolerance in [
        (osdp.MixedPrecision(torch.bfloat16, torch.float32), 1e-6),
        (osdp.MixedPrecision(torch.float32, torch.float16), 2e-3),
    ]:
        states = []
        for mode in ("FULL_SHARD", "HYBRID_SHARD"):
            model = blocks.workload(count=1).model(SEED, torch.float32)
            (tokens,), target = blocks.workload().data(1, 2 * me.world, torch.float32)
            plan = osdp.Plan.uniform(describe_once(model, tokens), mode)
            osdp.fully_shard(model, plan, me.group, ranks_per_host=2, mixed_precision=policy)
            blocks.surprise(model(me.part(tokens)), me.part(target)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)
            states.append(model.state_dict())
        for name, value in states[0].items():
            close(states[1][name], value, tolerance, f"{name} with {policy}")


def test_mixed_precision(ranks):
    ranks(in_low_precision, world=4)
