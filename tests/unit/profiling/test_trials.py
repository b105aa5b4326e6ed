"""What trial steps make of a profile: known figures are found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

import osdp
from osdp.hardware.hardware import Collective, Hardware
from osdp.profiling.trial_steps import MODES, Trial, _fits, fitted
from tests.unit.gpt_descriptions import gpt

BATCH = 4


def true_machine(description: osdp.ModelDescription) -> Hardware:
    return Hardware(
        name="here",
        source="a test",
        device="cpu",
        world_size=2,
        memory_bytes=None,
        all_gather=Collective(5e-5, 5e-10),
        reduce_scatter=Collective(5e-5, 6e-10),
        all_reduce=Collective(4e-5, 4e-10),
        flops_per_s=1e11,
        optimizer_s_per_byte=4e-10,
        stolen_computation=1.3,
        gamma_s={o.name: 1e-4 for o in description.operators},
        gamma_fixed_s={o.name: 1e-4 for o in description.operators},
        recompute_s={o.name: 5e-5 for o in description.operators},
        recompute_slowdown=1.4,
    )


def trials_on(machine: Hardware, description: osdp.ModelDescription) -> list[Trial]:
    forward = sum(machine.recompute_s.values()) * BATCH
    bare = sum(machine.gamma_s.values()) * BATCH + sum(machine.gamma_fixed_s.values())
    trials = []
    plans = [replace(osdp.Plan.uniform(description, mode), batch_size=BATCH) for mode in MODES]
    again = {block.name: "hold" for block in description.blocks}
    for plan in [*plans, plans[0].replace({}, recompute=again)]:
        line = plan.simulate(machine, 2)
        step = (line.step_time_s - line.optimizer_s) / bare
        processor = machine.stolen_computation * line.communication_s / bare
        trials.append(Trial(plan, (forward, bare - forward), step, line.optimizer_s / bare, processor))
    return trials


def test_what_was_measured_wrong_is_put_right() -> None:
    description = gpt(4, 256)
    truth = true_machine(description)
    measured = replace(
        truth,
        gamma_s={name: 2 * s for name, s in truth.gamma_s.items()},
        gamma_fixed_s={name: 2 * s for name, s in truth.gamma_fixed_s.items()},
        recompute_s={name: 1.2 * s for name, s in truth.recompute_s.items()},
        optimizer_s_per_byte=3e-10,
        stolen_computation=0.0,
        recompute_slowdown=1.0,
        communication_delay=Collective(1e-4, 1e-9),
    )
    found = fitted(measured, trials_on(truth, description), 2)
    assert found.gamma_s == pytest.approx(truth.gamma_s) and found.recompute_s == pytest.approx(
        truth.recompute_s
    )
    assert found.gamma_fixed_s == pytest.approx(truth.gamma_fixed_s)
    assert found.optimizer_s_per_byte == pytest.approx(4e-10, rel=1e-6)
    assert found.stolen_computation == pytest.approx(1.3, abs=0.01)
    assert found.exposed_communication == found.stolen_computation
    assert found.recompute_slowdown == pytest.approx(1.4, abs=0.01)
    assert found.communication_delay == Collective(0.0, 0.0)


def test_steps_that_are_faster_than_nothing_stolen_steal_nothing() -> None:
    description = gpt(4, 256)
    truth = true_machine(description)
    trials = [replace(t, step=t.step / 2) for t in trials_on(truth, description)]
    found = fitted(truth, trials, 2)
    assert found.stolen_computation == 0.0 and found.exposed_communication == 1.0
    assert found.recompute_slowdown == 1.0


def test_a_slow_links_steps_steal_no_more_than_the_processor_time_that_they_take() -> None:
    """Steps that take as long as their communication, measured 3% longer: computation explains that only if
    transfers steal nearly as much as they take."""
    description = gpt(4, 256)
    slow = Collective(5e-5, 2e-8)
    truth = replace(
        true_machine(description),
        all_gather=slow,
        reduce_scatter=slow,
        all_reduce=slow,
        stolen_computation=0.05,
    )
    trials = [replace(t, step=1.03 * t.step) for t in trials_on(truth, description)]
    assert fitted(truth, trials, 2).stolen_computation == pytest.approx(0.05, rel=0.01)
    on_a_gpu = fitted(replace(truth, device="cuda"), trials, 2).stolen_computation
    assert on_a_gpu > 0.5
    larger = replace(osdp.Plan.uniform(description, "FULL_SHARD"), batch_size=3 * BATCH)
    took = larger.simulate(truth, 2).step_time_s
    assert larger.simulate(fitted(truth, trials, 2), 2).step_time_s == pytest.approx(took, rel=0.02)


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2), ("float64", 8)])
def test_a_mode_is_tried_where_it_fits_beside_the_model_in_its_own_dtype(dtype: str, itemsize: int) -> None:
    description = gpt(2, 64)
    operators = tuple(
        replace(
            o,
            parameters=tuple(replace(p, dtype=dtype) for p in o.parameters),
            parameter_bytes=sum(itemsize * p.elements for p in o.parameters),
        )
        for o in description.operators
    )
    description = replace(description, operators=operators)
    here = true_machine(description)
    plan = replace(osdp.Plan.uniform(description, "NO_SHARD"), batch_size=BATCH)
    elements = sum(p.elements for p in description.parameters)
    needed = plan.simulate(here, 2).peak_memory_bytes + 2 * itemsize * elements
    assert _fits(plan, description, replace(here, memory_bytes=needed), 2)
    assert not _fits(plan, description, replace(here, memory_bytes=needed - 1), 2)
