"""The objectives of a search (the fastest plan, the least memory, the largest batch) and their errors for
infeasible problems."""

from __future__ import annotations

from collections.abc import Callable

from osdp import _search
from osdp.base.byte_sizes import format_bytes, format_limits
from osdp.base.progress import Progress
from osdp.errors import InfeasibleError
from osdp.plan.plan import Plan
from osdp.planning.plan_builder import plan_of
from osdp.planning.search_problem import SearchProblem


def best_plan(problem: SearchProblem, limit: int) -> Plan:
    """The plan, or InfeasibleError with the smallest limit that works and its plan."""
    with Progress("osdp.search") as progress:
        problem, answer = _solved(problem, limit, lambda gap: progress(gap_in_words(gap)))
    if not answer.feasible:
        raise _nothing_fits(problem, limit, answer.smallest_limit_bytes, answer.out_of_time)
    at_least = problem.searched.at_least
    if at_least is not None and answer.throughput(problem.ranks) < at_least:
        best = plan_of(problem, answer)
        assert best.predicted is not None
        raise InfeasibleError(
            f"no plan that fits {format_bytes(limit)} gives {at_least:g} samples/s; "
            f"the best gives {best.predicted.throughput:g}",
            None,
            best,
        )
    return plan_of(problem, answer)


def _solved(
    problem: SearchProblem, limit: int, progress: Callable[[float], None]
) -> tuple[SearchProblem, _search.Answer]:
    """The answer, and the problem that it solves: with the times of kernels at the plan's batch."""
    answer = problem.planner.search(problem.wish(limit), progress)
    if problem.times_vary() and answer.feasible:
        problem = problem.changed(kernels_batch=answer.plan.batch.size)
    return problem, answer


def gap_in_words(gap: float) -> str:
    """`gap`: difference of the best plan so far and the bound, as a fraction of the plan's time; 1: no plan
    yet.

    A search has several passes, one for each bound, each with its own gap.
    """
    return (
        "no plan yet in this pass"
        if gap >= 1
        else f"no plan of this pass is more than {max(gap, 0):.2%} faster than its best"
    )


def _nothing_fits(
    problem: SearchProblem, limit: int, least: int, out_of_time: bool = False
) -> InfeasibleError:
    method = problem.searched.method
    if least <= limit:
        return InfeasibleError(
            f"method={method!r} found no plan that fits {format_bytes(limit)} in "
            f"{problem.searched.time_limit_s or _search.DEFAULT_TIME_LIMIT_S:g} s: allow a larger "
            "time_limit"
            + (", or use method='exact'" if method != "exact" else "")
            + (" or 'dfs-smallest-first'" if method == "dfs" else "")
        )
    # Any plan is good enough for the message.
    s = problem.searched
    one = s.batch_size if s.batch_size is not None or s.global_batch_size is not None else 1
    exact = problem.changed(method="exact")
    wishes = [(p, p.wish(least)) for p in (exact.changed(batch_size=one), exact)]
    searched, wish = wishes[0]  # what the plan says, too: its proof is of this batch alone
    answer = exact.planner.any_plan(wish)
    if not answer.feasible:  # the least plan has another batch
        searched, wish = wishes[1]
        answer = exact.planner.any_plan(wish)
    # None: an interrupt may come before it is found.
    nearest = plan_of(searched, answer) if answer.feasible else None
    asked, fits = format_limits(limit, least)
    return InfeasibleError(
        (
            f"no plan that fits {asked} was found in {problem.searched.time_limit_s:g} s: allow a larger "
            f"time_limit; the smallest that was found fits {fits}: "
            if out_of_time and problem.searched.time_limit_s is not None
            else f"no plan fits {asked}; the smallest that fits is {fits}: "
        )
        + (_summary(nearest) if nearest is not None else "no plan for it was made")
        + _not_recomputed(problem)
        + _not_offloaded(problem),
        least,
        nearest,
    )


def _not_recomputed(problem: SearchProblem) -> str:
    """Which blocks no plan recomputes because they change their inputs, and what to do; "" if there are none."""
    changing = problem.description.blocks_changing_inputs
    if not changing or problem.searched.checkpoint == ("none",):
        return ""
    more = f" and {len(changing) - 1} more" if len(changing) > 1 else ""
    return (
        f". No plan recomputes {changing[0]!r}{more}, which changed its inputs when it was described (a KV cache? an "
        "operation in place?): describe and train a model of transformers with use_cache=False "
        "(osdp.integrations.transformers.describe)"
    )


def _not_offloaded(problem: SearchProblem) -> str:
    """The mode that was left out and needs less of the device's memory; "" if the search had it, or cannot price it."""
    modes = problem.searched.modes
    offloads = any(_search.traits(mode).on_host for mode in modes)
    if offloads or problem.hardware.host_memory is None or problem.cost == "paper":
        return ""
    more = ", ".join(f"{mode!r}" for mode in (*modes, "FULL_SHARD_OFFLOAD"))
    return f". Operators may rest in host memory, so that less of the device's is needed: modes=({more})"


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
