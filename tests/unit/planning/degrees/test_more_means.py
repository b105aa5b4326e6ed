"""Whatever a part of the search may do, the whole may: 3D+OSDP is never slower than what is searched with fewer means."""

import dataclasses
import random
from typing import Any

import pytest

import osdp
from osdp.hardware.hardware import Collective
from tests.unit.gpt_descriptions import gpt
from tests.unit.planning.degrees.problems import STYLES, hosts_machine, searched

GAP = 0.005  # of the searches
FOUR_STAGES: dict[str, Any] = {"tensor_parallel": 1, "pipeline_parallel": 4, "tp_plan": None}


def test_the_schedule_is_a_decision() -> None:
    """GPipe waits less for short transfers, and needs more memory; 1F1B sends in both directions at once."""
    quick = hosts_machine(all_gather=Collective(5e-6, 2e-10))
    ample: dict[str, Any] = {**FOUR_STAGES, "hardware": quick, "description": gpt(3, 128), "memory": "64MiB"}
    ample |= {"modes": "NO_SHARD", "checkpoint": False}
    steps = {s: searched(schedule=s, **ample).step_time_s for s in ("1f1b", "gpipe")}
    assert steps["gpipe"] < 0.95 * steps["1f1b"]
    plan = searched(**ample)
    assert plan.schedule == "gpipe" and plan.step_time_s == steps["gpipe"] and osdp.verify(plan) == ""
    stages = [s.plan.searched.stage for s in plan.stages if s.plan.searched is not None]
    assert [s.in_flight for s in stages if s is not None] == [plan.micro_batches] * 4
    assert "schedule gpipe" in str(plan) and "1 x 4 x 2, gpipe" in str(plan)
    assert [a.schedule for a in plan.alternatives if a.step_time_s is not None] == ["gpipe"]
    tight = ample | {"memory": plan.peak_memory_bytes // 2, "batch_size": plan.micro_batch_size}
    with pytest.raises(osdp.InfeasibleError):
        searched(schedule="gpipe", **tight)
    assert searched(**tight).schedule == "1f1b"
    slow = hosts_machine(all_gather=Collective(1e-4, 2e-10))
    assert searched(**ample | {"hardware": slow, "batch_size": 1}).schedule == "1f1b"


def test_what_is_no_decision_has_one_name() -> None:
    one = searched(tensor_parallel=1, pipeline_parallel=1, memory="64MiB", tp_plan=None)
    assert one.schedule == "1f1b"
    short = searched(**FOUR_STAGES, memory="64MiB", batch_size=4)
    assert short.micro_batches < 4 and short.schedule == "gpipe"


def problem(seed: int) -> dict[str, Any]:
    """A model, and a machine whose links are slow or fast."""
    r = random.Random(seed)

    def link() -> Collective:
        return Collective(10 ** r.uniform(-6, -4), 10 ** r.uniform(-10.5, -8.5))

    hosts = r.choice([1, 2])
    machine = hosts_machine(4, all_gather=link(), reduce_scatter=link(), all_reduce=link())
    model = gpt(r.choice([2, 3, 4]), r.choice([32, 64]), tokens=r.choice([4, 16, 64]), vocabulary=100)
    return {
        "description": model,
        "memory": int(2 ** r.uniform(19.5, 22)),
        "world_size": 4,
        "hosts": hosts,
        "hardware": dataclasses.replace(machine, between_hosts=link()),
        "global_batch_size": r.choice([8, 16]),
        "gap": GAP,
    }


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.extras) for s in range(3, 40))]
)
def test_no_search_with_fewer_means_finds_more(seed: int) -> None:
    asked = problem(seed)
    whole = searched_or_none(**asked)
    if whole is not None:
        steps = [a.step_time_s for a in whole.alternatives if a.step_time_s is not None]
        assert all(whole.step_time_s <= s for s in steps)
    per_host = 4 // asked["hosts"]
    for tensor, pipeline in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)):
        if tensor > per_host:
            continue
        for schedule in ("1f1b", "gpipe") if pipeline > 1 else ("1f1b",):
            for modes in ("auto", "NO_SHARD"):
                fewer: dict[str, Any] = {
                    "tensor_parallel": tensor,
                    "pipeline_parallel": pipeline,
                    "schedule": schedule,
                    "modes": modes,
                    "tp_plan": STYLES if tensor > 1 else None,
                }
                part = searched_or_none(**asked | fewer)
                if part is not None:
                    assert whole is not None and whole.step_time_s <= part.step_time_s * (1 + GAP), fewer


def searched_or_none(**asked: Any) -> osdp.ParallelPlan | None:
    try:
        return searched(**asked)
    except osdp.InfeasibleError:
        return None
