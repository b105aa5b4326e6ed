"""FULL_SHARD in two levels: gathered between hosts, then inside; with FULL_SHARD_HPZ what came from other hosts stays."""

from __future__ import annotations

import random

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import Pair, close, naming
from support.workload import Workload
from test_hybrid import Tied, freeze
from torch import distributed as dist
from torch.distributed import fsdp as torchs
from torch.distributed.device_mesh import DeviceMesh

import osdp
from osdp.description.model_description import ModelDescription
from osdp.errors import ProcessGroupError
from osdp.fsdp.fsdp_module import as_fsdp_module
from osdp.sharding.sharded_model import runtime_of

MODES = ("FULL_SHARD_HIERARCHICAL", "FULL_SHARD_HPZ")


def every_mode(description: ModelDescription) -> osdp.Plan:
    """Modes and slices of all kinds in one model, half of its operators in two levels."""
    plan, dice = plans.mixture(description, 0), random.Random(0)
    chosen = dice.sample(list(plan.choices), k=len(plan.choices) // 2 + 1)
    modes = (*MODES, "HYBRID_SHARD")
    return plan.replace({name: osdp.Choice(modes[i % 3]) for i, name in enumerate(chosen)})


def uniform(mode: str, recompute: str = ""):
    def plan(description: ModelDescription) -> osdp.Plan:
        chosen = plans.apart(osdp.Plan.uniform(description, mode))
        return plans.recomputed(chosen, recompute) if recompute else chosen

    return plan


def pairs(me: Member, workload: Workload | None = None, recompute: str = "", **options):
    for name, plan in {mode: uniform(mode, recompute) for mode in MODES}.items():
        with naming(name):
            yield Pair(me, workload or blocks.workload(count=2), plan, ranks_per_host=2, **options)


def as_one_process(me: Member) -> None:
    for pair in pairs(me):
        pair.train(steps=2)
        pair.train(steps=1, micros=3)
        pair.train(steps=1, micros=2, no_sync=True)
        pair.evaluate()
        pair.train(steps=1)
    with naming("every mode"):
        pair = Pair(me, blocks.workload(count=2), every_mode, ranks_per_host=2)
        pair.train(steps=3)
        pair.evaluate()
    for recompute in ("hold", "regather"):
        for pair in pairs(me, recompute=recompute):
            pair.train(steps=2)
    for pair in pairs(me, prepare=freeze):
        pair.train(steps=2)
    batch = lambda n: ((torch.randint(9, (n, 3)),), torch.randint(9, (n, 3)))  # noqa: E731
    for pair in pairs(me, Workload(Tied, batch, blocks.surprise)):
        pair.train(steps=2)


@pytest.mark.parametrize("world", [4, 2])
def test_trains_as_one_process(ranks, world):
    ranks(as_one_process, world=world)


def on_one_level(me: Member) -> None:
    """One rank on each host."""
    for mode in MODES:
        Pair(me, blocks.workload(count=1), uniform(mode), ranks_per_host=1).train(steps=2)


def test_one_rank_on_each_host(ranks):
    ranks(on_one_level, world=3)


def asked_for_between_passes(me: Member) -> None:
    """What came from other hosts is not what a script is shown once the parameters have changed."""
    for mode in MODES:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), mode)
        osdp.fully_shard(model, plans.apart(plan), process_group=me.group, ranks_per_host=2)
        as_fsdp_module(model)
        model(torch.randn(2, 8)).sum().backward()
        for value in (1.0, 2.0):
            for p in model.parameters():
                p.data.fill_(value)
            model.unshard()
            for p in model.parameters():
                assert p.numel() in (64, 8) and (p == value).all(), (mode, value)
            model.reshard()
        out = model(torch.ones(1, 8)).sum()
        with torch.no_grad():
            model(torch.ones(1, 8))
        out.backward()


def test_a_script_is_shown_what_is_there(ranks):
    ranks(asked_for_between_passes, world=4)


def sent(me: Member) -> dict[str, int]:
    """Bytes that this rank sends between hosts and inside its own in a step of one layer, by mode."""
    found = {}
    for mode in ("FULL_SHARD", *MODES, "HYBRID_SHARD"):
        torch.manual_seed(0)
        model, x = (
            torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Tanh()),
            torch.randn(2, 64),
        )
        plan = osdp.Plan.uniform(osdp.describe(model, x), mode)
        model = osdp.fully_shard(model, plan, process_group=me.group, ranks_per_host=2)
        sharded = runtime_of(model)
        rows = [tuple(p.global_offsets) for p in sharded.pieces("0.weight")]
        assert mode == "HYBRID_SHARD" or rows == [(16 * me.rank, 0)], (mode, rows)
        sharded.runtime.reset_statistics()
        model(x).sum().backward()
        found[mode] = sharded.runtime.statistics()["sent_bytes"]
    return found


def test_what_is_sent(ranks):
    """Of S bytes on 2 x 2 ranks: S/2 by each collective inside hosts, S/4 by each between them."""
    inside, between = 64 * 64 * 4 // 2, 64 * 64 * 4 // 4
    for found in ranks(sent, world=4):
        assert found["FULL_SHARD"] == 3 * 3 * between  # a ring over all
        assert found["FULL_SHARD_HIERARCHICAL"] == 3 * inside + 3 * between
        assert found["FULL_SHARD_HPZ"] == 3 * inside + 2 * between
        assert 0 <= found["HYBRID_SHARD"] - found["FULL_SHARD_HPZ"] < 64  # and a digest of copies


def as_fsdp2(me: Member, number: int) -> set[str]:
    mesh = DeviceMesh("cpu", list(range(me.world)))
    models, x = [], [torch.randn(4, 8) for _ in range(3)]
    for library in (torchs, osdp):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3))
        )
        for block in model:
            library.fully_shard(block, mesh=mesh, reshard_after_forward=number)
        models.append(library.fully_shard(model, mesh=mesh, reshard_after_forward=number))
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for each in x:
            model(each).square().sum().backward()
            optimizer.step(), optimizer.zero_grad()
    for theirs, ours in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert ours.placements == theirs.placements and ours.to_local().shape == theirs.to_local().shape
        close(ours.full_tensor(), theirs.full_tensor(), 1e-6, "after 3 steps")
    return {choice.mode for choice in runtime_of(models[1]).plan.choices.values()}


def test_resharding_to_fewer_ranks_as_fsdp2(ranks):
    modes = {1: "SHARD_GRAD_OP", 2: "FULL_SHARD_HPZ", 4: "FULL_SHARD"}
    for number, mode in modes.items():
        assert ranks(as_fsdp2, number, world=4) == [{mode}] * 4


def interleaved(me: Member) -> str:
    model = torch.nn.Linear(8, 8)
    plan = osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), "FULL_SHARD_HPZ")
    for lines in ([[0, 2], [1, 3]], [[2, 3], [0, 1]]):
        mesh = DeviceMesh("cpu", lines, mesh_dim_names=("replicate", "shard"))
        with pytest.raises(ProcessGroupError, match="FULL_SHARD_HPZ needs hosts whose ranks are consecutive"):
            osdp.fully_shard(model, plan, device_mesh=mesh)
    dist.barrier()
    return str(model.weight.shape)


def test_interleaved_hosts_are_refused(ranks):
    assert set(ranks(interleaved, world=4)) == {"torch.Size([8, 8])"}
