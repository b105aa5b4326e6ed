"""torch.compile of blocks that tensor parallelism divides: what trains is one process's model."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.descriptions import describe_once
from support.pair import naming
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
    ("world", "when", "how", "sequence"),
    [
        (2, "after", "FULL_SHARD", False),
        (4, "before", "FSDP2's manner", True),
    ],
)
def test_training_is_one_processs(ranks, world, when, how, sequence):
    ranks(trains, when, how, sequence, world=world)


def whole(me: Member) -> None:
    for how in ("compile()", "torch.compile()", "without a plan"):
        model = net()
        given = torch.compile(model, backend="eager") if how == "torch.compile()" else model
        if given is model:
            model.compile(backend="eager")
        parameters = list(model.parameters())
        plan = osdp.Plan.uniform(describe_once(net(), tokens(0, 2)), "FULL_SHARD")
        if how == "without a plan":
            osdp.fully_shard(model.blocks[0], process_group=me.group)
            parameters = list(model.parameters())
        with naming(how), pytest.raises(osdp.ShardingError, match=r"compiled as a whole|Compile in place"):
            osdp.fully_shard(given, *(() if how != "compile()" else (plan,)), process_group=me.group)
        assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_a_model_that_is_compiled_as_a_whole_is_refused(ranks):
    ranks(whole, world=2)
