"""A plan's step, played: what Python adds to csrc/search/simulate (tests/cpp/test_simulate.cpp has the player's own)."""

from __future__ import annotations

import dataclasses
import json

import pytest

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, linear, machine, operator

HERE = dict(world_size=8, hardware=machine())


def two_linears(**changes: object) -> ModelDescription:
    a, b = linear("a", 64, 64, 1), linear("b", 64, 64, 1)
    none = dict(saved_bytes_per_sample=0, work_bytes_per_sample=0)
    a, b = (dataclasses.replace(o, **none, **changes) for o in (a, b))
    return ModelDescription("Two", (a, b), (), 1, 0)


def test_a_step_by_hand():
    # Each operator: 64 x 64 + 64 floats, 16,640 bytes; forward 1 ms, backward 2 ms.
    hardware = dataclasses.replace(
        machine(2),
        all_gather=Collective(0.5e-3, 0.0),
        reduce_scatter=Collective(0.7e-3, 0.0),
        gamma_s={"a": 3e-3, "b": 3e-3},
        recompute_s={"a": 1e-3, "b": 1e-3},
        optimizer_s_per_byte=1e-7,
    )
    plan = osdp.Plan.uniform(two_linears(), "FULL_SHARD")
    plan = dataclasses.replace(plan, units=(("a",), ("b",)))
    with pytest.raises(osdp.PlanMismatchError, match="its hardware"):
        plan.simulate()
    step = plan.simulate(hardware, 2)
    # tests/cpp/test_simulate.cpp, two_units_by_hand: the same in tenths of a millisecond.
    update = 2 * 16640 / 2 * 1e-7
    assert step.step_time_s == pytest.approx(7.2e-3 + update)
    assert step.overlap_s == pytest.approx(1.7e-3)
    assert step.exposed_communication_s == pytest.approx(1.2e-3)
    assert step.optimizer_s == pytest.approx(update)
    events = {(e.name, e.action, e.phase): (e.begin_s, e.end_s) for e in step.events}
    assert events["b", "reduce", "backward"] == pytest.approx((4.5e-3, 5.2e-3))
    assert events["a", "compute", "backward"] == pytest.approx((4.5e-3, 6.5e-3))
    # Parameters and two moments of half of each; in backward of a: its parameters, its gradient, that of b, which is
    # being reduced, and what remains of it.
    assert step.peak_memory_bytes == 2 * 3 * 16640 // 2 + 3 * 16640 + 16640 // 2


def test_a_forward_takes_longer_the_second_time():
    description = gpt(2, 128)
    plain = osdp.Plan.uniform(description, "NO_SHARD")
    held = plain.replace({}, recompute={b.name: "hold" for b in description.blocks})
    steps = {
        slowdown: held.simulate(machine(1, recompute_slowdown=slowdown), 1).step_time_s
        for slowdown in (1.0, 1.5)
    }
    without = plain.simulate(machine(1), 1).step_time_s
    assert steps[1.0] > without
    assert steps[1.5] - without == pytest.approx(1.5 * (steps[1.0] - without), rel=1e-6)


def test_slower_beside_each_other():
    plan = osdp.search(gpt(2, 128), memory="1GiB", modes="FULL_SHARD", batch_size=4, **HERE)
    alone = plan.simulate()
    late = plan.simulate(machine(communication_delay=Collective(1e-5, 1e-10)))
    no_latency = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), Collective(0.0, 1e-9))
    free, robbed = (plan.simulate(machine(stolen_computation=s, **no_latency)) for s in (0.0, 0.5))
    assert late.step_time_s > alone.step_time_s and late.communication_s > alone.communication_s
    assert robbed.step_time_s >= free.step_time_s and free.overlap_s > 0
    # Half of each second beside computation is lost to it; that may make more of the communication run beside it.
    assert robbed.compute_s >= free.compute_s + free.overlap_s / 2
    # Latency takes nothing away.
    waits = dict.fromkeys(no_latency, Collective(1e-4, 0.0))
    waiting, robbed = (plan.simulate(machine(stolen_computation=s, **waits)) for s in (0.0, 0.5))
    assert robbed.step_time_s == waiting.step_time_s


@pytest.mark.parametrize("memory", ["17MiB", "20MiB", "40MiB", "80MiB"])
@pytest.mark.parametrize(
    "changes", [{}, {"checkpoint": False, "granularity": 1}, {"global_batch_size": 64}, {"precision": "bf16"}]
)
def test_the_curve_stays_below_the_predicted_peak(memory, changes):
    try:
        plan = osdp.search(gpt(4, 256), memory=memory, **HERE, **changes)
    except osdp.InfeasibleError as error:
        plan = error.plan
    step = plan.simulate()
    assert max(size for _, size in step.memory) == step.peak_memory_bytes <= plan.predicted.peak_memory_bytes
    # What another timing may add is no more than the largest buffers.
    reserve = 3 * max(o.transient_bytes for o in plan.predicted.operators.values())
    bucket = 4 * 2**20
    assert step.peak_memory_bytes >= plan.predicted.peak_memory_bytes - reserve - bucket
    assert step.memory[0][0] == 0 and step.memory[-1][1] < step.peak_memory_bytes


@pytest.mark.parametrize("memory", ["100MiB", "200MiB", "600MiB"])
def test_the_predicted_peak_counts_tied_parameters_that_are_held(memory):
    """Read first and last, as an embedding that is the head too, and a little larger than anything else."""
    description = gpt(2, 1024)
    first, *others = description.operators
    shared = operator("shared", "Embedding", {"weight": (4800, 1024)})
    shared = dataclasses.replace(shared, gather_at=("shared", others[-1].name), calls=2)
    description = dataclasses.replace(description, operators=(shared, first, *others))
    for modes in ("auto", "FULL_SHARD", "SHARD_GRAD_OP"):
        try:
            plan = osdp.search(description, memory=memory, modes=modes, **HERE)
        except osdp.InfeasibleError as error:
            plan = error.plan
        step = plan.simulate()
        assert step.peak_memory_bytes <= plan.predicted.peak_memory_bytes and verify(plan) == ""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_predicted_peak_counts_a_reduced_part_beside_that_of_earlier_micro_batches(device, precision):
    none = dict(saved_bytes_per_sample=0, work_bytes_per_sample=0)
    operators = tuple(dataclasses.replace(linear(f"l.{i}", 512, 512, 1), **none) for i in range(6))
    plan = osdp.search(
        ModelDescription("Six", operators, (), 1, 0), memory="1GiB", world_size=2,
        hardware=machine(2, device=device), batch_size=1, global_batch_size=4, modes="FULL_SHARD",
        granularity=1, precision=precision,
    )  # fmt: skip
    assert plan.simulate().peak_memory_bytes <= plan.predicted.peak_memory_bytes


def test_one_rank_communicates_nothing():
    plan = osdp.search(gpt(2, 64), memory="64MiB", world_size=1, hardware=machine(1), batch_size=2)
    step = plan.simulate()
    assert step.communication_s == 0 and {e.resource for e in step.events} == {"computation"}
    assert step.step_time_s == pytest.approx(plan.certificate.step_ps * 1e-12)


def test_a_module_called_twice_is_gathered_twice_and_tied_ones_once():
    def gathers(o):
        plan = osdp.Plan.uniform(
            ModelDescription("M", (o, linear("last", 64, 64, 1)), (), 1, 0), "FULL_SHARD"
        )
        plan = dataclasses.replace(plan, units=((o.name,), ("last",)))
        events = plan.simulate(machine(2), 2).events
        return sum(e.action == "gather" and e.name == o.name for e in events)

    once = operator("o", "Linear", {"weight": (64, 64)})
    assert gathers(once) == 2  # forward and backward
    assert gathers(dataclasses.replace(once, calls=3)) == 4
    assert gathers(dataclasses.replace(once, calls=2, gather_at=("o", "last"))) == 2


@pytest.mark.parametrize(
    "choice",
    [
        osdp.Choice("FULL_SHARD", granularity=4, sharded_slices=3, split="in"),
        osdp.Choice("FULL_SHARD", granularity=2, sharded_slices=0, split="out"),
        osdp.Choice("FULL_SHARD", granularity=64, split="in"),
        osdp.Choice("HYBRID_SHARD"),
    ],
)
def test_plays_what_no_search_considers(choice):
    plan = osdp.Plan.uniform(two_linears(), "FULL_SHARD").replace({"a": choice})
    step = plan.simulate(machine(2), 2)
    gathers = [e for e in step.events if e.action == "gather" and e.name.startswith("a")]
    sharded = choice.slices_sharded if choice.granularity > 1 else 1
    assert len({e.name for e in gathers}) == sharded and len(gathers) == 2 * sharded
    # What every rank holds in full has its whole state and gradient; of the rest half.
    whole = 16384 * (choice.granularity - sharded) // choice.granularity + 256 * (choice.granularity > 1)
    assert step.memory[-1][1] == 4 * (16640 // 2 + whole + (16640 - whole) // 2)


def test_exports(tmp_path):
    step = osdp.search(gpt(2, 128), memory="12MiB", **HERE).simulate()
    read = json.loads(step.to_json())
    assert len(read["events"]) == len(step.events) and read["step_time_s"] == step.step_time_s
    step.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in trace if e["ph"] == "X"]
    assert len(spans) == len(step.events)
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(step.step_time_s * 1e6)
    assert sum(e["ph"] == "C" for e in trace) == len(step.memory)
    assert "of it beside computation" in str(step)
