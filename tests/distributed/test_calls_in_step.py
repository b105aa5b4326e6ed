"""What tells transformers that ranks call a sharded model in step: its `generate` then goes on while another rank does."""

from __future__ import annotations

import copy

import torch
from harness import Member
from support import blocks
from support.pair import Pair, naming
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import osdp

MODES = {"FULL_SHARD": True, "SHARD_GRAD_OP": True, "NO_SHARD": False}


def told(model: nn.Module) -> set[bool]:
    """As transformers.distributed.fsdp.is_fsdp_managed_module asks: of any module of the model."""
    return {bool(getattr(module, "_is_fsdp_managed_module", False)) for module in model.modules()}


def modules_are_marked(me: Member) -> None:
    for mode, gathers in MODES.items():
        with naming(mode):
            pair = Pair(me, blocks.workload(), mode)
            assert told(pair.sharded) == {gathers}
            assert told(copy.deepcopy(pair.sharded)) == {gathers}
            with osdp.summon_full_params(pair.sharded):  # one rank alone may call it here
                assert told(pair.sharded) == {False}
            pair.train(steps=1)
            assert told(pair.sharded) == {gathers}


def parts_and_wholes_are_marked(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    model = blocks.workload().model(0, torch.float64)
    osdp.fully_shard(model.blocks[0], mesh=mesh)
    assert told(model.blocks[0]) == {True} and told(model.blocks[1]) == {False}
    osdp.fully_shard(model, mesh=mesh)  # what a part was marked with is not taken for torch's fully_shard
    assert told(model) == {True}
    wrapped = osdp.FullyShardedDataParallel(blocks.workload().model(0, torch.float64), process_group=me.group)
    assert told(wrapped.module) == {True}
    alone = [g for g in map(dist.new_group, ([0], [1])) if me.rank in dist.get_process_group_ranks(g)]
    single = osdp.FullyShardedDataParallel(blocks.workload().model(0, torch.float64), process_group=alone[0])
    assert told(single) == {False}


def test_modules_that_gather_are_marked(ranks):
    ranks(modules_are_marked, world=2)


def test_parts_are_marked(ranks):
    ranks(parts_and_wholes_are_marked, world=2)
