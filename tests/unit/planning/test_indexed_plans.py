"""IndexedPlans, by which local search simulates plans: the same figures as those of the simulator and the checker."""

from __future__ import annotations

import pytest

import osdp
from osdp import _search
from osdp.hardware.hardware import Collective
from osdp.planning.search_problem import SearchProblem
from tests.unit.gpt_descriptions import gpt, machine
from tests.unit.problems import indexed


@pytest.mark.parametrize("batch", [{"batch_size": 2}, {"global_batch_size": 64}])
@pytest.mark.parametrize("hosts", [1, 2])
def test_figures_are_those_of_the_simulator_and_the_checker(batch: dict[str, int], hosts: int) -> None:
    hardware = machine(8, stolen_computation=0.25, between_hosts=Collective(40e-6, 1e-9))
    for limit in ("16MiB", "24MiB", "48MiB", "1GiB"):
        plan = osdp.search(gpt(4, 256), memory=limit, world_size=8, hosts=hosts, hardware=hardware, **batch)
        assert plan.searched is not None and plan.certificate is not None and plan.predicted is not None
        problem = SearchProblem.of(plan)
        played = _search.IndexedPlans(problem.planner, plan.memory_limit_bytes)
        at = indexed(problem, plan)
        assert played.step_ps(*at) == round(plan.predicted.step_time_s * 1e12)
        assert played.largest_peak_bytes(*at) == plan.predicted.peak_memory_bytes >= played.peak_bytes(*at)


def test_a_plan_of_another_problem_is_refused() -> None:
    plan = osdp.search(gpt(2, 128), memory="20MiB", world_size=4, hardware=machine(4), batch_size=1)
    problem = SearchProblem.of(plan).changed(checkpoint=("none",))
    played = _search.IndexedPlans(problem.planner, plan.memory_limit_bytes)
    operators, blocks = len(plan.description.operators), len(plan.description.blocks)
    for choices, ways in (
        ([0] * (operators - 1), ["none"] * blocks),
        ([1000] * operators, ["none"] * blocks),
        ([0] * operators, ["hold"] * blocks),
    ):
        with pytest.raises(ValueError, match="none of this problem"):
            played.step_ps(_search.Batch(1), choices, ways)
