"""A search that is stopped at any moment claims no more than it has proven."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from osdp import _search
from osdp.hardware.hardware import Hardware
from tests.unit.problems import problem_of

PLANNER = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "planner.py"))


@pytest.mark.parametrize(("widths", "limit"), [((1024, 2048, 4096), 12), ((6144,), 16)])
def test_bound_and_proof_hold_whenever_it_is_stopped(widths: tuple[int, ...], limit: int) -> None:
    """Many phases bind in these models, so that every part of the search takes its share of the time."""
    blocks = 36 if len(widths) > 1 else 3
    hardware = Hardware.load("rtx-titan-8")
    transformer = PLANNER["transformer"]([w for w in widths for _ in range(blocks // len(widths))])
    planner = problem_of(transformer, hardware, 8).planner
    model, request = planner.model, planner.request(limit_bytes=limit * 10**9)

    def per_sample(found: _search.Schedule) -> float:
        return found.step_ps * 1e-12 / found.batch.samples()

    whole = min((_search.schedule(model, request, 60.0) for _ in range(3)), key=lambda s: s.seconds)
    assert whole.optimal
    best = per_sample(whole)
    for part in range(1, 10):
        found = _search.schedule(model, request, whole.seconds * part / 9)
        assert found.lower_bound_s_per_sample <= best * (1 + 1e-12)
        if found.optimal:
            assert per_sample(found) == pytest.approx(best, rel=1e-12)
