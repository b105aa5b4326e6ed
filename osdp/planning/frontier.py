"""frontier: throughput against the memory limit, from the least that works to where more gains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from osdp.base.byte_sizes import parse_bytes
from osdp.errors import InfeasibleError, PlanMismatchError
from osdp.plan.frontier import Frontier, FrontierPoint
from osdp.planning.search import search_again

if TYPE_CHECKING:
    from osdp.plan.plan import Plan


def frontier(plan: Plan, points: int = 32, limits: Sequence[int | float | str] | None = None) -> Frontier:
    """The frontier of the model, machine and search space of `plan`.

    `limits`: the memory limits to look at (limits that nothing fits are left out). By default `points` of them,
    evenly in the logarithm, from the smallest limit under which a plan exists to the smallest under which the
    throughput is the best that any limit gives (at most 8 times the plan's own limit and what all devices of
    this kind hold). Each point is a whole search: its plan is `osdp.search(..., memory=limit)`, or that of a smaller
    limit where its played step is faster.

    Raises PlanMismatchError for a plan that was not searched.

    >>> for p in plan.frontier(points=8).points:
    ...     print(p.memory_limit_bytes, p.throughput)
    """
    if plan.searched is None or plan.memory_limit_bytes is None:
        raise PlanMismatchError("the plan was not made by osdp.search: there is no search to repeat")
    if limits is not None:
        wanted = sorted({parse_bytes(x) for x in limits})
    else:
        least = _smallest_limit(plan)
        most = _largest_useful(plan, least)
        n = max(2, points)
        wanted = sorted({round(least * (most / least) ** (i / (n - 1))) for i in range(n)} | {least, most})
    found = []
    best: Plan | None = None
    for limit in wanted:
        try:
            p = search_again(plan, limit)
        except InfeasibleError:
            continue
        # What fits a smaller limit fits this one; played, it may be faster than what the objective prefers here.
        p = best = p if best is None else max(best, p, key=_throughput)
        assert p.predicted is not None
        found.append(
            FrontierPoint(
                limit,
                p.predicted.throughput,
                p.predicted.step_time_s,
                p.batch_size,
                p.predicted.peak_memory_bytes,
            )
        )
    return Frontier(tuple(found))


def _throughput(plan: Plan) -> float:
    return plan.predicted.throughput if plan.predicted else 0.0


def _smallest_limit(plan: Plan) -> int:
    try:
        search_again(plan, 0)
    except InfeasibleError as e:
        if e.smallest_limit:
            return e.smallest_limit
    return 1


def _largest_useful(plan: Plan, least: int) -> int:
    """Where throughput no longer rises, or the most worth looking at."""

    def throughput(limit: int) -> float:
        p = search_again(plan, limit)
        assert p.predicted is not None
        return p.predicted.throughput

    limit = plan.memory_limit_bytes or least
    high = max(8 * limit, 2 * least)
    best = throughput(high)
    low = least
    while high > low * 1.01:
        middle = int((high * low) ** 0.5)
        if throughput(middle) >= best * (1 - 1e-4):
            high = middle
        else:
            low = middle
    return high
