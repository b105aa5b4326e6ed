"""A parameter that another sharded model has is refused: its rows would be cut once more, as if they were all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import Member
from support.pair import SEED, held
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import osdp

FSDP = osdp.FullyShardedDataParallel


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.words = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(x))


def refused(again: Callable[[], object], name: str) -> None:
    with pytest.raises(osdp.ShardingError, match=f"parameter '{name}'.*weight"):
        again()


def parts_and_wholes(me: Member) -> None:
    mesh = DeviceMesh.from_group(me.group, "cpu")
    tied = Tied()
    osdp.fully_shard(tied.words, mesh=mesh)
    refused(lambda: osdp.fully_shard(tied.head, osdp.Plan.uniform(tied.head), me.group), "weight")
    assert held(tied.words.weight).shape == (8 // me.world, 4)
    osdp.fully_shard(tied, mesh=mesh)
    tokens = torch.arange(4)
    assert torch.equal(tied(tokens), Tied()(tokens))

    for wrap in (
        lambda model: FSDP(model, me.group),
        lambda model: osdp.fully_shard(model, osdp.Plan.uniform(model), me.group),
    ):
        whole = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        wanted = whole[0].weight.clone()
        model = wrap(whole)
        refused(lambda wrap=wrap, whole=whole: wrap(whole[0]), "weight")
        refused(lambda wrap=wrap, whole=whole: wrap(nn.Sequential(nn.Linear(4, 4), whole[1])), "1.weight")
        model(torch.ones(2, 4)).sum().backward()
        full = model.state_dict()["0.weight"]
        assert full.shape == (4, 4) and (me.rank or torch.equal(full, wanted))


@pytest.mark.outcome("a wrap around parameters of another sharded model", osdp.ShardingError)
def test_a_parameter_that_is_sharded_already(ranks):
    ranks(parts_and_wholes, world=2)
