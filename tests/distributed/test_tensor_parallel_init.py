"""A model built on the meta device and divided by tensor parallelism is initialised as one process initialises it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from harness import Member
from support.pair import SEED, naming
from support.tensor_parallel import Net, TensorPair, mesh_of, parallelized
from support.worlds import worlds
from torch import nn

import osdp


class Drawn(Net):
    """With a method that initialises, as torchtitan's models have."""

    @torch.no_grad()
    def init_weights(self) -> None:
        nn.init.normal_(self.embed.weight, std=0.5)
        for block in self.blocks:
            block.norm.reset_parameters()
            for linear in (block.up, block.down):
                nn.init.trunc_normal_(linear.weight, std=0.3)
                linear.bias.zero_()
            block.up.weight.mul_(0.5)
        self.norm.reset_parameters()
        nn.init.xavier_uniform_(self.head.weight)  # of the shape of the whole


def reset(module: nn.Module) -> None:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()


WAYS: dict[str, Any] = {
    "init_weights": lambda m: m.init_weights(),
    "apply": lambda m: m.apply(reset),
    "each module": lambda m: [reset(each) for each in m.modules()],
}


def whole_by(way: str) -> nn.Module:
    model = Drawn().double()
    torch.manual_seed(SEED)
    WAYS[way](model)
    return model


def on_meta(me: Member) -> tuple[Net, Any]:
    mesh = mesh_of(me, me.world // 2, 2)
    with torch.device("meta"):
        model = parallelized(Drawn().double(), mesh["tp"])
    return model, mesh["dp"]


def by_plan(me: Member, mode: str) -> nn.Module:
    model, mesh = on_meta(me)
    torch.manual_seed(SEED + me.rank)  # rank 0's values count
    return osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model), mode), device_mesh=mesh)


def emptied(me: Member, way: str, mode: str | None) -> nn.Module:
    model, mesh = on_meta(me)
    if mode is None:
        for part in (*model.blocks, model):
            osdp.fully_shard(part, mesh=mesh)
    else:
        osdp.fully_shard(
            model, osdp.Plan.uniform(osdp.describe(model), mode), device_mesh=mesh, initialise=False
        )
    model.to_empty(device="cpu")
    torch.manual_seed(SEED + me.rank)
    WAYS[way](model)
    return model


def initialised(me: Member) -> None:
    modes = ("NO_SHARD", "FULL_SHARD")
    cases: dict[str, Any] = {f"by a plan of {m}": (partial(by_plan, me, m), "apply") for m in modes}
    cases |= {way: (partial(emptied, me, way, None), way) for way in WAYS}
    cases["to_empty under NO_SHARD"] = (partial(emptied, me, "init_weights", "NO_SHARD"), "init_weights")
    for name, (build, way) in cases.items():
        with naming(name):
            pair = TensorPair(build(), whole_by(way), me.rank // 2, me.world // 2)
            pair.same_parameters(0)
            pair.train(steps=1)
            pair.same_parameters()


@pytest.mark.outcome("`to_empty`, `reset_parameters` and `init_weights` over tensor parallelism", "equal")
@pytest.mark.parametrize("world", worlds(4, more=(2,)))
def test_values_are_one_processs(ranks, world):
    ranks(initialised, world=world)
