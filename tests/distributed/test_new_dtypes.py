"""A model that gets another dtype between fully_shard and its first forward, as FSDP2 takes it."""

from __future__ import annotations

import pytest
import torch
from harness import Member
from support.nested import net, train
from support.pair import SEED, adamw, close
from test_fsdp_module import full_gradients, sharded_by
from torch import nn
from torch.distributed import fsdp as torchs
from torch.distributed.device_mesh import DeviceMesh

import osdp
from osdp.sharding.sharded_model import runtime_of


def widened(me: Member) -> None:
    """Tied, frozen and nested parts, converted as a whole, in a module around it, and block by block."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    for how in ("whole", "around", "blocks", "twice"):
        model = net(SEED).float()
        if how == "blocks":
            for block in [*model.blocks, *model.inner]:
                osdp.fully_shard(block, mesh=mesh).double()
            osdp.fully_shard(model, mesh=mesh)
        else:
            sharded_by(osdp, model, mesh, True)
        optimizer = adamw(model.parameters())  # the parameters stay the same objects
        model.blocks[1].set_requires_gradient_sync(False)
        (nn.ModuleList([model]) if how == "around" else model).double()
        if how == "twice":
            model.float().double()
        model.set_requires_gradient_sync(True)
        train(me, net(SEED).float().double(), model, optimizer=optimizer)
        assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_a_model_is_widened_before_its_first_forward(ranks):
    ranks(widened, world=2)


def narrowed(me: Member) -> None:
    """bfloat16: FSDP2's gradients; after a step it is refused by name, as in float16."""
    mesh = DeviceMesh.from_group(me.group, "cpu")
    made = []
    for library in (osdp, torchs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in model:
            library.fully_shard(layer, mesh=mesh)
        library.fully_shard(model, mesh=mesh)
        assert model.to(torch.bfloat16) is model
        torch.manual_seed(1)
        out = model(me.part(torch.randn(2 * me.world, 8)).bfloat16())
        assert out.dtype == torch.bfloat16
        out.square().mean().backward()
        made.append(full_gradients(model))
    for name, want in made[1].items():
        close(made[0][name], want, 0.02, name)
    ours = nn.Sequential(nn.Linear(8, 8))
    osdp.fully_shard(ours, mesh=mesh)
    ours(torch.randn(2, 8)).sum().backward()
    before = runtime_of(ours)
    ours.half()
    assert runtime_of(ours) is before
    with pytest.raises(osdp.ShardingError, match=r"'0\.weight' is now"):
        ours(torch.randn(2, 8).half())
    ours.float()(torch.randn(2, 8)).sum().backward()


def test_a_model_is_narrowed_before_its_first_forward(ranks):
    ranks(narrowed, world=2)
