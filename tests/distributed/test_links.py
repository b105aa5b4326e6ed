"""Training through each kind of link: gradients are one process's, however their bytes travel.

The ranks here share a host, and would use shared memory by themselves.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from harness import Member
from harness.doomed import run_doomed
from support import plans
from support.links import NO, only, tower
from support.pair import train_all
from support.workload import Workload, vectors
from support.worlds import worlds
from torch import nn

import osdp
from osdp.ranks.process_groups import lane_group


def corners(description: osdp.ModelDescription) -> dict[str, osdp.Plan]:
    found = plans.corners(description)
    return found | {f"{k}, 3 ahead": replace(found[k], prefetch=3) for k in ("FULL_SHARD", "mixture 0")}


def trained(me: Member, link: str) -> None:
    with only(link):
        cpu = torch.device("cpu")
        assert lane_group(me.group, cpu).collectives.transport == link
        train_all(me, Workload(tower, vectors(256, 7)), corners, steps=3)


@pytest.mark.parametrize("link", NO)
@pytest.mark.parametrize("world", worlds(3, more=(2,)))
def test_training_through_each_link(world: int, link: str) -> None:
    for ending in run_doomed(trained, link, world=world, timeout_s=60.0):
        assert ending.error is None and ending.signal is None, ending


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.doomed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if i == 2 and self.doomed:
                os._exit(3)
            x = layer(x).tanh()
        return x


def left_alone(me: Member) -> str:
    with only("sockets"):
        model = Slow()
        plan = plans.apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 256)), "FULL_SHARD"))
        osdp.fully_shard(model, plan, process_group=me.group)
    model(torch.randn(2, 256)).sum().backward()
    model.doomed = me.rank == me.world - 1
    try:
        model(torch.randn(2, 256)).sum().backward()
    except osdp.OSDPError as error:
        return str(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_dies_behind_a_socket_is_named(world: int) -> None:
    endings = run_doomed(left_alone, world=world, timeout_s=3.0)
    for ending in endings[:-1]:
        assert ending.result is not None, ending
        assert f"rank {world - 1}" in ending.result and "process has ended" in ending.result, ending.result
