"""Drawing values anew after fully_shard: refused for a part of a parameter, right inside summon_full_params."""

from __future__ import annotations

import contextlib

import pytest
import torch
from harness import Member
from support.pair import Pair, naming
from support.workload import Workload, vectors
from torch import nn
from torch.nn import init
from torch.nn.init import kaiming_normal_, uniform_  # before anything is sharded

import osdp


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def reset_parameters(self) -> None:
        self.weight.data.uniform_(-1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6), Own())


def in_place(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(0, 0.02)
        module.bias.data.zero_()


def by_init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        init.xavier_uniform_(module.weight)


DRAWS = {
    "apply with nn.init": lambda m: m.apply(by_init),
    "apply with a tensor's method": lambda m: m.apply(in_place),
    "apply of a module inside": lambda m: m[0].apply(in_place),
    "a loop": lambda m: [by_init(module) for module in m.modules()],
    "a name imported before": lambda m: kaiming_normal_(m[0].weight),
    "another": lambda m: uniform_(m[0].weight.data),
    "orthogonal": lambda m: init.orthogonal_(m[1].weight[:2]),
    "eye": lambda m: init.eye_(m[1].weight),
    "reset_parameters of torch's": lambda m: m[0].reset_parameters(),
    "reset_parameters of the model's": lambda m: m[2].reset_parameters(),
}


def drawn(me: Member) -> None:
    pair = Pair(me, Workload(build, vectors(6, 6)), "FULL_SHARD")
    before = pair.sharded.state_dict()
    for name, draw in DRAWS.items():
        with (
            naming(name),
            pytest.raises(
                osdp.ShardingError, match=r"initialise parameter '\d\.weight' .*summon_full_params"
            ),
        ):
            draw(pair.sharded)
    after = pair.sharded.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    for name, draw in DRAWS.items():  # and in full, seeded alike
        for model, context in ((pair.whole, contextlib.nullcontext()), (pair.sharded, None)):
            torch.manual_seed(5)
            with context or osdp.summon_full_params(pair.sharded), torch.no_grad():
                draw(model)
        with naming(name):
            pair.same_parameters()
    for model in (pair.whole, pair.sharded):  # right of any part
        model.apply(
            lambda m: isinstance(m, nn.Linear) and init.zeros_(m.bias) is init.constant_(m.weight, 0.1)
        )
        model.apply(lambda m: m.eval()).train()
    pair.train(steps=2)
    nn.init.xavier_uniform_(torch.empty(3, 3))


@pytest.mark.outcome(
    "`model.apply(init)`, `torch.nn.init` and `reset_parameters` on shards", osdp.ShardingError
)
def test_drawing_parts_anew(ranks):
    ranks(drawn, world=2)


def of_other_seeds(me: Member) -> None:
    model = nn.Sequential(nn.Linear(6, 4))
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 6)), "NO_SHARD"), me.group)
    for _ in range(4):  # past the forwards that compare anyway
        model(torch.randn(2, 6)).sum().backward()
    torch.manual_seed(me.rank)
    model[0].reset_parameters()
    with pytest.raises(osdp.ReplicaError, match=r"'0\.(weight|bias)'"):
        model(torch.randn(2, 6)).sum().backward()


@pytest.mark.outcome("NO_SHARD parameters initialised again with different seeds", osdp.ReplicaError)
def test_drawing_replicas_anew(ranks):
    ranks(of_other_seeds, world=2)
