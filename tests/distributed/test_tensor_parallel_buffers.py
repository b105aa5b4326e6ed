"""Buffers that are DTensors, as torchtitan's rotations are under tensor parallelism."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import Member
from support.pair import close, naming
from support.tensor_parallel import mesh_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import osdp


class Scaled(nn.Module):
    """A product whose outputs are scaled, each by its own number, and turned by numbers that all ranks have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.float64))
        self.register_buffer("scale", torch.randn(8, dtype=torch.float64), persistent=False)
        self.register_buffer("turn", torch.randn(8, 1, dtype=torch.float64), persistent=False)

    def over(self, mesh: DeviceMesh) -> Scaled:
        self.weight = nn.Parameter(distribute_tensor(self.weight.detach(), mesh, [Shard(0)]))
        self.scale = distribute_tensor(self.scale, mesh, [Shard(0)])
        self.turn = distribute_tensor(self.turn, mesh, [Replicate()])
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if not isinstance(self.scale, DTensor):
            return x @ (self.weight @ self.turn).expand(8, 8) + x @ self.weight.t() * self.scale
        x = DTensor.from_local(x, self.scale.device_mesh, [Replicate()], run_check=False)
        turned = (self.weight @ self.turn).redistribute(placements=[Replicate()]).expand(8, 8)
        out = x @ turned + (x @ self.weight.t() * self.scale).redistribute(placements=[Replicate()])
        return out.to_local()


def buffers(me: Member) -> None:
    mesh = mesh_of(me, 2, 2)
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mine = x.chunk(2)[me.rank // 2]
    for mode in ("FULL_SHARD", "NO_SHARD", None):
        with naming(str(mode)):
            model, whole = Scaled().over(mesh["tp"]), Scaled()
            scale = model.scale
            if me.rank // 2:  # of the second replica: the first one's values count
                with torch.no_grad():
                    scale.mul_(3)
            if mode is None:
                osdp.fully_shard(model, mesh=mesh["dp"])
            else:
                plan = osdp.Plan.uniform(osdp.describe(model, mine), mode)
                osdp.fully_shard(model, plan, device_mesh=mesh["dp"])
            assert model.scale is scale and model.turn.placements == (Replicate(),)
            for each, batch in ((whole, x), (model, mine), (copy.deepcopy(model), mine)):
                each(batch).square().mean().backward()
                torch.optim.SGD(each.parameters(), lr=0.1).step()
                if each is not whole:
                    close(each(x), whole(x), 1e-9, "after a step")

    saved = Scaled().over(mesh["tp"])
    saved.register_buffer("turned", saved.turn)
    for refuses in (lambda: osdp.describe(saved), lambda: osdp.fully_shard(saved, mesh=mesh["dp"])):
        with pytest.raises(osdp.ShardingError, match="'turned'"):
            refuses()
        assert saved.turn is saved.turned and isinstance(saved.weight.data, DTensor)


def test_buffers_that_are_dtensors(ranks):
    ranks(buffers, world=4)
