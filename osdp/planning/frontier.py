"""frontier: throughput against the memory limit, from the smallest feasible limit to the one where more
memory no longer helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from osdp.base.byte_sizes import parse_bytes
from osdp.base.progress import Progress
from osdp.plan.frontier import Frontier, FrontierPoint
from osdp.planning.objectives import gap_in_words
from osdp.planning.search_problem import SearchProblem

if TYPE_CHECKING:
    from osdp.plan.plan import Plan


def frontier(plan: Plan, points: int = 32, limits: Sequence[int | float | str] | None = None) -> Frontier:
    """The frontier of the model, machine and search space of `plan`.

    `limits`: the memory limits to search, in bytes; limits under which no plan fits are omitted. By default
    there are `points` limits, spaced evenly on a logarithmic scale, from the smallest limit under which a
    plan exists to the smallest one that gives the highest throughput of all limits (of those up to 8
    times the plan's own limit, or twice the smallest one if that is more). Each point is a complete search: its plan is
    `osdp.search(..., memory=limit)`, or that of a smaller limit if its simulated step is faster.

    Raises PlanMismatchError for a plan that was not searched.

    >>> for p in plan.frontier(points=8).points:
    ...     print(p.memory_limit_bytes, p.throughput)
    """
    problem = SearchProblem.of(plan)
    limit = plan.memory_limit_bytes or 1
    planner, wish = problem.planner, problem.wish(limit)
    if limits is not None:
        wanted = sorted({parse_bytes(x) for x in limits})
    else:
        least, most = planner.useful_limits(wish)
        n = max(2, points)
        wanted = sorted({round(least * (most / least) ** (i / (n - 1))) for i in range(n)} | {least, most})
    with Progress(f"osdp.frontier, {len(wanted)} limits") as progress:
        found = planner.frontier(wish, wanted, lambda gap: progress(gap_in_words(gap)))
    return Frontier(
        tuple(
            FrontierPoint(
                a.limit_bytes,
                a.throughput(problem.ranks),
                a.played.step_ps * 1e-12,
                a.plan.batch.size,
                a.peak_bytes,
            )
            for a in found
        ),
        problem.hardware.label,
    )
