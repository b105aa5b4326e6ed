"""What has become of a machine since it was profiled: said where it has changed, and predicted for it as it is."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

import osdp
from osdp.errors import FormatError
from osdp.hardware import this_machine
from osdp.hardware.hardware import Hardware, Measured
from osdp.sharding.drift import Drift, Span, as_it_is, drift_of, step_now_s
from osdp.sharding.report import Report
from tests.unit.gpt_descriptions import gpt
from tests.unit.gpt_descriptions import machine as machine_of

CPU = torch.device("cpu")
HERE = Measured("a processor", 2, 1, "2.13.0", product_s=2e-3, copy_s=16e-3)


def plan(hosts: int = 1, **changes: object) -> osdp.Plan:
    description = gpt(2, 64)
    hardware = dataclasses.replace(machine_of(4), device="cpu", measured=HERE)
    gamma = {o.name: 4e-3 for o in description.operators}
    fixed = {o.name: 1e-3 for o in description.operators}
    timed = dataclasses.replace(hardware, gamma_s=gamma, gamma_fixed_s=fixed, recompute_s=gamma, **changes)
    return osdp.search(description, memory="1GiB", world_size=4, hardware=timed, batch_size=2, hosts=hosts)


def drifted(product: float, copy: float, bare: float | None = None) -> Drift:
    return Drift(
        Span(HERE.product_s, HERE.product_s * product),
        Span(HERE.copy_s, HERE.copy_s * copy),
        None if bare is None else Span(1.0, bare),
    )


def test_a_machine_that_is_as_it_was_is_predicted_as_before():
    made = plan()
    assert step_now_s(made, drifted(1.0, 1.0)) == pytest.approx(made.predicted.step_time_s)


def test_all_of_a_host_that_is_half_as_fast_takes_twice_as_long():
    made = plan()
    assert step_now_s(made, drifted(2.0, 2.0)) == pytest.approx(2 * made.predicted.step_time_s, rel=1e-6)


def test_an_operator_is_slower_by_what_it_is_made_of():
    made = plan(flops_per_s=2e10)
    found = as_it_is(made, made.hardware, drifted(product=3.0, copy=2.0))
    products = {o.name: 3 * o.flops_per_sample / 2e10 for o in made.description.operators}
    assert products["head"] > 0 and products["h.0.ln_1"] == 0
    assert found.gamma_s["h.0.ln_1"] == pytest.approx(2 * 4e-3)
    of_products = products["head"]
    assert of_products < 4e-3
    assert found.gamma_s["head"] == pytest.approx(3 * of_products + 2 * (4e-3 - of_products))
    assert found.recompute_s["head"] == pytest.approx(3 * of_products / 3 + 2 * (4e-3 - of_products / 3))
    assert found.gamma_fixed_s["head"] == pytest.approx(2e-3)
    assert found.flops_per_s == pytest.approx(2e10 / 3)
    assert found.optimizer_s_per_byte == pytest.approx(2 * made.hardware.optimizer_s_per_byte)


def test_the_models_own_step_counts_more_than_the_two_jobs():
    made = plan()
    found = as_it_is(made, made.hardware, drifted(product=3.0, copy=1.0, bare=1.5))
    assert set(found.gamma_s.values()) == {1.5 * 4e-3} and set(found.gamma_fixed_s.values()) == {1.5e-3}
    assert found.all_gather == made.hardware.all_gather


def test_links_between_hosts_and_of_accelerators_stay_as_they_are():
    here, there = plan(), plan(hosts=2)
    assert (
        as_it_is(here, here.hardware, drifted(1, 2)).all_gather.alpha_s
        == 2 * here.hardware.all_gather.alpha_s
    )
    assert as_it_is(there, there.hardware, drifted(1, 2)).all_gather == there.hardware.all_gather
    device = dataclasses.replace(here.hardware, device="cuda")
    assert as_it_is(here, device, drifted(1, 2)).all_reduce == device.all_reduce


def test_nothing_to_compare_with():
    made = plan()
    for hardware in (None, dataclasses.replace(made.hardware, measured=None), Hardware.load("a100-8")):
        assert drift_of(dataclasses.replace(made, hardware=hardware), CPU, 1.0) is None
    assert step_now_s(dataclasses.replace(made, predicted=None), drifted(2, 2)) is None
    without_gamma = dataclasses.replace(made.hardware, gamma_s={}, gamma_fixed_s={})
    found = drift_of(dataclasses.replace(made, hardware=without_gamma), CPU, 1.0)
    assert found is not None and found.bare_step is None  # the model was not profiled


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_profile_of_a_faster_or_slower_machine_is_noticed(factor: float):
    """Really measured: a profile that claims this machine's jobs took so much longer or shorter."""
    product_s, copy_s = this_machine.measure_probe(CPU)
    claimed = dataclasses.replace(HERE, product_s=product_s * factor, copy_s=copy_s * factor)
    made = plan(measured=claimed)
    found = drift_of(made, CPU, None)
    assert found is not None and (found.product.ratio > 1) == (found.copy.ratio > 1) == (factor < 1)
    now = step_now_s(made, found)
    then = made.predicted.step_time_s
    shown = str(Report(then, then, 1, 1, 9, drift=found, predicted_step_time_now_s=now))
    assert ("slower for this plan" if factor < 1 else "faster for this plan") in shown


def test_the_report_says_in_a_line_what_the_predictions_say():
    figures = (0.1, 0.13, 2**30, 2**30, 20)
    same = str(Report(*figures, drift=drifted(3.0, 0.3), predicted_step_time_now_s=0.105))
    assert same == str(Report(*figures)) and "machine" not in same
    for now, how in ((0.125, "25% slower"), (0.08, "25% faster")):
        changed = str(Report(*figures, drift=drifted(1.0, 1.3), predicted_step_time_now_s=now))
        assert "as it is" in changed and f"{1e3 * now:.4g} ms" in changed
        (line,) = [line for line in changed.splitlines() if "profiled" in line]
        assert line.startswith(f"This machine is {how} for this plan") and len(line) <= 110


def test_the_bare_step_is_the_models_own_and_leaves_no_trace():
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 256))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    assert 1e-6 < osdp.bare_step_s(model, torch.randn(64, 256)) < 1.0
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_jobs_take_no_memory_that_the_peak_counts():
    from osdp import _C

    _C.memory_meter_install()
    before = _C.memory_peak_bytes()
    this_machine.measure_probe(CPU)
    assert _C.memory_peak_bytes() == before


@pytest.mark.parametrize(
    ("field", "value"), [("product_s", 0.0), ("copy_s", -1.0), ("cores", 0), ("torch", 2)]
)
def test_a_file_that_claims_nonsense_is_refused(field: str, value: object):
    document = json.loads(plan().hardware.dumps())
    document["measured"][field] = value
    with pytest.raises(FormatError) as caught:
        Hardware.loads(json.dumps(document))
    assert caught.value.field == f"measured.{field}"


def test_another_machine_is_said_in_a_warning(monkeypatch, recwarn):
    device = torch.device("cpu")
    here = dataclasses.replace(plan().hardware, measured=this_machine.measured_here(device, 1.0, 1.0))
    this_machine.warn_of_another_machine(here, device, 4)
    this_machine.warn_of_another_machine(None, device, 4)
    assert not recwarn.list
    others = {"processor": "another", "cores": 999, "threads": 999, "torch": "1.0"}
    for field, value in others.items():
        other = dataclasses.replace(here, measured=dataclasses.replace(here.measured, **{field: value}))
        with pytest.warns(osdp.MachineMismatchWarning, match=f"{field} .*, not {value}"):
            this_machine.warn_of_another_machine(other, device, 4)
    with pytest.warns(osdp.MachineMismatchWarning, match="ranks 2, not 4"):
        this_machine.warn_of_another_machine(here, device, 2)
    with pytest.warns(osdp.MachineMismatchWarning, match="device cpu, not cuda"):
        this_machine.warn_of_another_machine(Hardware.load("a100-8"), device, 8)
    monkeypatch.setenv("LOCAL_RANK", "1")  # a host says it once
    recwarn.clear()
    this_machine.warn_of_another_machine(Hardware.load("a100-8"), device, 8)
    assert not recwarn.list
