"""torch.compile of blocks that tensor parallelism divides: what trains is one process's model."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.tensor_parallel import TensorPair, mesh_of, net, parallelized, tokens
from torch._dynamo.utils import counters

import osdp


def trains(me: Member, when: str, how: str, sequence: bool) -> None:
    """The embedding's output is still being sent when the first block, which is compiled, is called with it."""
    torch._dynamo.reset()
    counters.clear()
    mesh = mesh_of(me, me.world // 2, 2)
    model = parallelized(net(seed=7 + me.rank // 2), mesh["tp"], sequence)
    if when == "before":
        compiled(model)
    if how == "FSDP2's manner":
        for block in model.blocks:
            osdp.fully_shard(block, mesh=mesh["dp"])
        osdp.fully_shard(model, mesh=mesh["dp"])
    else:
        plan = osdp.Plan.uniform(describe_once(model, tokens(0, 2)), how)
        osdp.fully_shard(model, plan, device_mesh=mesh["dp"])
    if when == "after":
        compiled(model)
    pair = TensorPair(model, net(), me.rank // 2, me.world // 2)
    pair.train()
    assert counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    pair.same_parameters()


def compiled(model: torch.nn.Module) -> None:
    for block in model.blocks:
        block.compile(backend="aot_eager")


@pytest.mark.outcome("`block.compile()` of blocks that `parallelize_module` has divided", "equal")
@pytest.mark.parametrize(
    ("world", "when", "how", "sequence"), [(4, "before", "FULL_SHARD", False), (2, "after", "NO_SHARD", True)]
)
def test_training_is_one_processs(ranks, world, when, how, sequence):
    ranks(trains, when, how, sequence, world=world)
