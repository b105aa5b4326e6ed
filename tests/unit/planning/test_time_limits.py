"""What a search may take: `time_limit` is for all that it asks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import osdp
from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.planning.plan_builder import plan_of
from osdp.planning.search_problem import SearchProblem
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine, operator

HERE = dict(world_size=8, hardware=machine())


def test_the_largest_batch_is_no_larger_than_any_that_is_tried() -> None:
    one = ModelDescription("One", (operator("e", "Linear", {"weight": (8, 8)}, flops=10, saved=1),), (), 1, 0)
    assert osdp.search(one, memory="1MiB", objective="batch", **HERE).batch_size == 65536


def test_a_search_that_ends_for_its_steps_ends_alike_every_time() -> None:
    """Every rank of a job that searches for itself finds the same plan, however fast it is."""
    plan = osdp.search(gpt(5, 256), memory="20MiB", **HERE)
    problem = SearchProblem.of(plan)
    wish = problem.wish(20 * 2**20)
    wish.work = 2_000_000
    first, second = (plan_of(problem, problem.planner.search(wish)) for _ in range(2))
    assert first == second and not first.certificate.optimal and verify(first) == ""


def test_equal_micro_batches_are_played_once() -> None:
    arguments = dict(memory="40MiB", batch_size=2, **HERE)
    few = osdp.search(gpt(2, 128), global_batch_size=16 * 12, **arguments)
    # The time line plays all of them, the prediction two.
    assert few.accumulation == 12
    assert few.simulate().step_time_s == pytest.approx(few.predicted.step_time_s, rel=1e-12)
    many = osdp.search(gpt(2, 128), global_batch_size=16 * 2**17, **arguments)
    assert many.predicted.step_time_s == pytest.approx(2**17 / 12 * few.predicted.step_time_s, rel=0.02)


def test_solve_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    from osdp.planning import solve as solving

    solve = _search.solve

    def noted(*arguments: object) -> _search.Solution:
        asked.append(arguments[3])
        return solve(*arguments)

    monkeypatch.setattr(solving, "_search", SimpleNamespace(**{**vars(_search), "solve": noted}))
    for time_limit in (None, 2.5, float("inf")):
        osdp.solve([[(1, 1)]], 1, time_limit=time_limit)
    assert asked == [10.0, 2.5, 0.0]
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(osdp.InvalidProblemError, match="time_limit"):
            osdp.solve([[(1, 1)]], 1, time_limit=wrong)
