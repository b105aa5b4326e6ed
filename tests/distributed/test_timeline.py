"""What the profiler's timeline of a step says: units and phases by name, and as a time line beside the predicted one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from harness import Member
from support.worlds import worlds
from torch import nn
from torch.profiler import ProfilerActivity, profile

import osdp
from osdp.hardware.hardware import Hardware
from osdp.plan.timeline import Timeline


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


def recorded_and_read(me: Member, directory: str) -> None:
    """A whole step, written by the profiler and read again: it does what the simulator plays."""
    layers = [nn.Linear(64, 64) for _ in range(3)]
    model, x = nn.Sequential(*layers), torch.randn(4, 64)
    plan = osdp.Plan.uniform(osdp.describe(model, x), "FULL_SHARD")
    plan = dataclasses.replace(plan, units=tuple((name,) for name in plan.choices))
    osdp.fully_shard(model, plan, me.group)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step()
    path = Path(directory) / f"rank{me.rank}.json"
    recording.export_chrome_trace(str(path))
    measured = Timeline.of_trace(path)
    played = plan.simulate(Hardware.load("a100-8"), me.world)
    for resource, phases in (
        ("computation", {"forward", "backward", "optimizer"}),
        ("communication", {"forward", "backward"}),
    ):
        assert phases <= {e.phase for e in measured.events if e.resource == resource}, measured.events
    for action in ("gather", "reduce"):
        counts = [sorted(e.name for e in t.events if e.action == action) for t in (played, measured)]
        assert counts[0] == counts[1], counts
    assert 0 < measured.compute_s < measured.step_time_s
    assert measured.optimizer_s > 0 and measured.communication_s > 0
    largest = 64 * 64 * 4
    assert measured.peak_memory_bytes >= largest, "a gathered layer at least"


@pytest.mark.parametrize("world", worlds(3, more=(2,)))
def test_a_recorded_step_does_what_is_played(ranks, tmp_path, world):
    ranks(recorded_and_read, str(tmp_path), world=world)
