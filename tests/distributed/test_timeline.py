"""What the profiler's timeline of a step says: units and phases by name."""

from __future__ import annotations

import torch
from harness import Member
from torch import nn
from torch.profiler import ProfilerActivity, profile

import osdp


def recorded(me: Member) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(2, 8)
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, x), "FULL_SHARD"), me.group)
    model(x).sum().backward()  # the order of units is known after this
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        model(x).sum().backward()
    names = {event.name for event in recording.events()}
    for layer in ("0", "1"):
        for phase in ("forward", "backward"):
            assert f"{layer} {phase}" in names
    for phase in ("all-gather", "reduce-scatter"):
        assert f"0 .. 1 {phase}" in names  # small neighbours are one unit


def test_phases_are_named(ranks):
    ranks(recorded, world=2)
