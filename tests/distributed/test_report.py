"""osdp.report and fully_shard where the machine is not the one that was profiled, or no longer as fast."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from harness import Member
from torch import nn

import osdp
from osdp.hardware import this_machine
from osdp.hardware.hardware import Collective, Hardware
from osdp.sharding import drift
from osdp.sharding.sharded_model import runtime_of

LINK = Collective(1e-5, 1e-10)


def trained(me: Member, hardware: Hardware) -> tuple[nn.Module, list[str]]:
    """A model after six steps under a plan for that hardware, and what was warned of meanwhile."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(4, 64)
    plan = osdp.search(
        osdp.describe(model, x), memory="64MiB", world_size=me.world, hardware=hardware, batch_size=4
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        osdp.fully_shard(model, plan, me.group)
    for _ in range(6):
        model(x).sum().backward()
        model.zero_grad()
    return model, [str(w.message) for w in caught if w.category is osdp.MachineMismatchWarning]


def profiled_then(me: Member, factor: float, **changes: object) -> Hardware:
    """A profile of this machine, as if its jobs had taken so much longer then."""
    product_s, copy_s = me.everywhere(this_machine.measure_probe(torch.device("cpu")))[0]
    here = this_machine.measured_here(torch.device("cpu"), product_s * factor, copy_s * factor)
    return Hardware(
        "then", "made for this test", "cpu", me.world, 2**30, LINK, LINK, LINK, 1e10, 1e-9,
        measured=dataclasses.replace(here, **changes),
    )  # fmt: skip


def a_slower_machine(me: Member) -> None:
    model, warned = trained(me, profiled_then(me, 0.1))
    assert not warned
    report = osdp.report(model)
    assert report.drift is not None and report.drift.product.ratio > 1.5
    assert report.predicted_step_time_now_s > 1.5 * report.predicted_step_time_s
    assert "slower for this plan than when it was profiled" in str(report)
    before = osdp.report(model, machine=False)
    assert before.drift is None and before.predicted_step_time_now_s is None
    assert "machine" not in str(before)
    assert before.measured_peak_memory_bytes == report.measured_peak_memory_bytes


def the_same_machine(me: Member) -> None:
    model, warned = trained(me, profiled_then(me, 1.0))
    assert not warned
    then = runtime_of(model).plan.hardware.measured
    real = drift.measure_probe
    drift.measure_probe = lambda device: (then.product_s * 1.02, then.copy_s)
    try:
        report = osdp.report(model)
    finally:
        drift.measure_probe = real
    assert report.drift is not None
    assert "machine" not in str(report) and "as it is" not in str(report)


def another_machine(me: Member) -> None:
    _, warned = trained(me, profiled_then(me, 1.0, torch="1.0", processor="another"))
    assert len(warned) == 1, warned
    assert f"torch {torch.__version__}, not 1.0" in warned[0] and "not another" in warned[0]
    assert 'hardware="this"' in warned[0]


def fewer_ranks_than_train(me: Member) -> None:
    hardware = dataclasses.replace(profiled_then(me, 1.0), world_size=2)
    _, warned = trained(me, hardware)
    assert len(warned) == 1 and "ranks 3, not 2" in warned[0], warned


def test_a_machine_that_is_slower_than_when_profiled(ranks):
    ranks(a_slower_machine, world=2)


def test_a_machine_that_is_as_it_was(ranks):
    ranks(the_same_machine, world=2)


def test_a_plan_for_another_machine_trains_with_a_warning(ranks):
    ranks(another_machine, world=2)


def test_a_plan_measured_on_fewer_ranks(ranks):
    ranks(fewer_ranks_than_train, world=3)
