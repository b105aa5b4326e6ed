"""What a search is asked for: the fastest plan, the least memory that is fast enough, the largest batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osdp.base.byte_sizes import format_bytes
from osdp.errors import InfeasibleError
from osdp.plan.plan import Plan
from osdp.planning.core_inputs import MOST_BATCH
from osdp.planning.runner_up_selection import best_by_playing
from osdp.planning.search_job import DEFAULT_TIME_LIMIT_S, FIRST_PLAN_S, FIRST_PLAN_WORK, SearchJob


def fastest(job: SearchJob, limit: int, batches: Sequence[tuple[int, int]]) -> Plan:
    """The plan, or InfeasibleError with the smallest limit that works and its plan."""
    best_job, found = best_by_playing(job, limit, batches, find_smallest=True)
    if found["feasible"]:
        return best_job.assembly(limit).plan(found)
    least = found["smallest_limit"]
    if least <= limit:
        raise InfeasibleError(
            f"method={job.searched.method!r} found no plan that fits {format_bytes(limit)} in "
            f"{job.limit_s() or DEFAULT_TIME_LIMIT_S:g} s: give it a larger time_limit"
            + (", or use method='exact'" if job.searched.method != "exact" else "")
            + (" or 'dfs-smallest-first'" if job.searched.method == "dfs" else "")
        )
    smallest = batches or [(1, 1)]
    exact = dataclasses.replace(job, searched=dataclasses.replace(job.searched, method="exact"))
    # Some plan that fits is found at once; this one is for a message.
    found = exact.run(least, smallest, work=FIRST_PLAN_WORK)
    if not found["feasible"]:
        found = exact.run(least, smallest)
    nearest = exact.assembly(least).plan(found)
    raise InfeasibleError(
        f"no plan fits {format_bytes(limit)}; the smallest that fits is {format_bytes(least)}: "
        + _summary(nearest),
        least,
        nearest,
    )


def least_memory(job: SearchJob, limit: int, batches: Sequence[tuple[int, int]], at_least: float) -> Plan:
    """The plan of the smallest limit whose best plan gives so many samples/s over all ranks, to the byte; where
    time runs out, of the smallest limit by then.
    """

    def fast_enough(limit: int) -> tuple[SearchJob, Mapping[str, Any]] | None:
        at, best = best_by_playing(job, limit, batches)
        if not best["feasible"]:
            return None
        samples = job.ranks * best["batch_size"] * best["accumulation"]
        step_s = at.assembly(limit).step_ps(best) * 1e-12
        return (at, best) if samples >= at_least * step_s else None

    known = fast_enough(limit)
    if known is None:
        best_plan = fastest(job, limit, batches)
        assert best_plan.predicted is not None
        raise InfeasibleError(
            f"no plan that fits {format_bytes(limit)} gives {at_least:g} samples/s; "
            f"the best gives {best_plan.predicted.throughput:g}",
            None,
            best_plan,
        )
    low, high = 0, int(known[1]["peak_bytes"])
    while high - low > 1 and job.left_s() > 0:
        middle = (low + high) // 2
        less = fast_enough(middle)
        if less is None:
            low = middle
        else:
            known, high = less, max(low + 1, min(middle, int(less[1]["peak_bytes"])))
    at, best = known
    return at.assembly(high).plan(best)


def largest_batch(job: SearchJob, limit: int, batches: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The largest size per rank that fits; the smallest where none does; where time runs out, the largest that
    is known to fit.
    """

    def fits(batch: tuple[int, int]) -> bool:
        # Any plan will do, and the first one is known at once.
        return job.left_s() > 0 and any(
            job.run(limit, [batch], time_limit_s=s)["feasible"] for s in (FIRST_PLAN_S, None)
        )

    if batches:
        return next((b for b in sorted(batches, reverse=True) if fits(b)), min(batches))
    return (_last_true(lambda b: fits((b, 1)), MOST_BATCH), 1)


def _summary(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for choice in plan.choices.values():
        counts[choice.mode] = counts.get(choice.mode, 0) + 1
    parts = [f"batch {plan.batch_size}"]
    parts.append(
        f"all {next(iter(counts))}" if len(counts) == 1 else ", ".join(f"{n} {m}" for m, n in counts.items())
    )
    slices = max((c.granularity for c in plan.choices.values()), default=1)
    if slices > 1:
        parts.append(f"granularity {slices}")
    if plan.recompute:
        parts.append(f"{len(plan.recompute)} blocks recomputed")
    return ", ".join(parts)


def _last_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest n in 1..most that holds; what holds for n holds for less. 1 where none does."""
    low, high = 1, 2
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
