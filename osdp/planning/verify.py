"""verify: checks a plan's claims from the plan alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from osdp import _search
from osdp.base.names import joined
from osdp.errors import InfeasibleError, InvalidProblemError, PlanMismatchError
from osdp.hardware.hardware import check_hardware
from osdp.plan.parallel_plan import ParallelPlan
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import Certificate
from osdp.plan.searched import COST_VERSION, Searched
from osdp.plan.validation import problems
from osdp.planning.core_choices import core_plan
from osdp.planning.degrees.replay import verify as verify_parallel
from osdp.planning.plan_builder import bound_request, checked_bound_ps, plan_of
from osdp.planning.search import search_again
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import check_host_memory, choose_space


def verify(plan: Plan | ParallelPlan, *, search: bool = False) -> str:
    """Check every claim of a plan from the plan alone. Returns "" if all hold, else what is false.

    Everything follows from `description`, `hardware` and the other arguments of the search, and from the decisions
    (`choices`, `recompute`, `batch_size`, `accumulation`): the step is simulated again, units and predictions are
    recomputed and compared, and what the certificate's prices of memory prove of the step of every plan is computed by
    code that is independent of the search (csrc/search/certificate/plan_certificate.cpp): `checked_bound_ps`.

    Where the search claims more, since it also lists plans (`step_bound_ps`), its proof is repeated. `search=True`
    repeats the whole search: no plan that it finds may be faster than the bound. docs/plan.md lists field by field what is
    checked. Of a ParallelPlan every stage's plan is checked, what it was made for, and the played step.

    Raises PlanMismatchError for a plan without certificate, hardware or the arguments of its search, and for one whose
    figures are those of an older OSDP's cost model (`searched.cost_version`).

    >>> assert osdp.verify(osdp.Plan.load("plan.json")) == ""
    """
    if isinstance(plan, ParallelPlan):
        return verify_parallel(plan, lambda stage: verify(stage, search=search))
    c, s = plan.certificate, plan.searched
    if s is not None and s.cost_version < COST_VERSION:
        raise PlanMismatchError(
            f"the plan's figures are of cost version {s.cost_version}, and this osdp computes those of version "
            f"{COST_VERSION}: search again"
        )
    if c is None or s is None or plan.hardware is None or plan.world_size is None:
        raise PlanMismatchError(
            "the plan has no certificate: it was not made by osdp.search, or was changed afterwards"
        )
    try:
        check_hardware(plan.hardware)
        for where, why in problems(plan):
            return f"{where}: {why}"
        for why in _disagreements(plan, s):
            return why
        choose_space(s.modes, s.granularity or 1, s.checkpoint, plan.cost, s.hosts)  # may raise
        check_host_memory(plan.hardware, s.modes)  # may raise
        if wrong := _check_claims(plan, c):
            return wrong
        return _search_again(plan, c) if search else ""
    except (_search.InvalidProblem, InvalidProblemError) as e:
        return str(e)


def _check_claims(plan: Plan, c: Certificate) -> str:
    """The first claim that is false, or ""."""
    problem = SearchProblem.of(plan)
    planner, core, limit = problem.planner, core_plan(plan), plan.memory_limit_bytes or 0
    peak = plan.predicted.peak_memory_bytes if plan.predicted is not None else planner.largest_peak(core)
    if wrong := _search.check_plan(planner.model, bound_request(problem, c, limit), core, c.step_ps, peak):
        return wrong
    played = planner.play(core)
    if c.step_ps != played.step_ps:
        return f"a step takes {played.step_ps} ps, but the certificate says {c.step_ps}"
    if wrong := _check_bounds(plan, c, problem):
        return wrong
    answer = _search.Answer(
        plan=core, peak_bytes=planner.largest_peak(core), limit_bytes=limit, played=played
    )
    return next(_differences("", plan, plan_of(problem, answer)), "")


def _check_bounds(plan: Plan, c: Certificate, problem: SearchProblem) -> str:
    """The bound that prices prove, and the search's: proven again where it is higher."""
    core, limit = core_plan(plan), plan.memory_limit_bytes or 0
    proven = checked_bound_ps(problem, c, limit, core.batch) if c.batches else 0
    if c.checked_bound_ps != min(proven, c.step_ps):
        return f"the prices prove {proven} ps, but the certificate says {c.checked_bound_ps}"
    if c.step_bound_ps == c.checked_bound_ps:
        return ""
    one = {"batch_size": plan.batch_size} if problem.searched.objective == "batch" else {}
    searched = problem.searched
    # As the search did it; then for longer; then as a search that was stopped may have, with other shares.
    for gap, thorough in ((searched.gap, False), (searched.gap, True), (searched.gap / 10, True)):
        # What was proven within a short time takes another machine longer: steps are counted there.
        wish = problem.changed(
            gap=gap, method="exact", objective="throughput", **_counted(searched), **one
        ).wish(limit)
        proof = problem.planner.prove(wish, thorough)
        bound = proof.lower_bound_s_per_sample * 1e12 * core.batch.samples()
        # What a plan attains is a whole number; other bounds are rounded down.
        proven = max(proven, round(bound) if proof.attained else int(bound))
        if c.step_bound_ps <= proven:
            return ""
    return f"the bound on a step is {proven} ps, but the certificate says {c.step_bound_ps}"


def _disagreements(plan: Plan, s: Searched) -> Iterator[str]:
    """Differences between facts that the plan states twice."""
    assert plan.world_size is not None
    if s.prefetch is not None and plan.prefetch != s.prefetch:
        yield f"prefetch is {plan.prefetch}, but the search was given {s.prefetch}"
    if s.batch_size is not None and plan.batch_size != s.batch_size:
        yield f"batch_size is {plan.batch_size}, but the search was given {s.batch_size}"
    samples = plan.batch_size * plan.accumulation
    if s.global_batch_size is not None and samples * plan.world_size != s.global_batch_size:
        yield f"{samples} samples on each of {plan.world_size} ranks are not global_batch_size {s.global_batch_size}"
    if s.global_batch_size is None and plan.accumulation != 1:
        yield f"accumulation is {plan.accumulation}, but the search was given no global_batch_size"
    if (s.at_least is not None) != (s.objective == "memory"):
        yield f"objective is {s.objective!r}, but at_least is {s.at_least}"
    if s.at_least is not None and plan.predicted is not None and plan.predicted.throughput < s.at_least:
        yield f"the throughput is {plan.predicted.throughput}, less than at_least {s.at_least}"


# Readable text, and fields that are checked by themselves.
_NOT_COMPARED = ("reason", "certificate")


def _differences(path: str, said: Any, made: Any) -> Iterator[str]:
    """Fields whose value in the plan (`said`) differs from the recomputed one (`made`)."""
    if is_dataclass(said) and type(said) is type(made):
        for f in fields(said):
            if f.name not in _NOT_COMPARED:
                inner = joined(path, f.name)
                yield from _differences(inner, getattr(said, f.name), getattr(made, f.name))
    elif isinstance(said, Mapping) and isinstance(made, Mapping) and said.keys() == made.keys():
        for key in said:
            yield from _differences(f"{path}.{key}", said[key], made[key])
    elif said != made:
        yield f"{path} is {said!r:.200}, but the plan's decisions give {made!r:.200}"


def _search_again(plan: Plan, c: Certificate) -> str:
    """Whether another search under the same limit finds a plan below the bound."""
    assert plan.searched is not None and plan.memory_limit_bytes is not None
    one: dict[str, Any] = {"batch_size": plan.batch_size} if plan.searched.objective == "batch" else {}
    try:
        best = search_again(
            plan,
            plan.memory_limit_bytes,
            objective="throughput",  # with the limit that objective="memory" found
            at_least=None,
            method="exact",
            **_counted(plan.searched),
            **one,
        )
    except InfeasibleError as e:
        return f"a repeated search finds no plan: {e}"
    other = best.certificate
    assert other is not None
    samples, others = plan.batch_size * plan.accumulation, best.batch_size * best.accumulation
    if other.step_ps * samples < c.step_bound_ps * others:
        found = f"a plan of batch {others} takes {other.step_ps} ps"
        return f"the bound is {c.step_bound_ps} ps for {samples} samples, but {found}"
    return ""


def _counted(searched: Searched) -> dict[str, Any]:
    """Without a time limit that is shorter than a search that counts its steps."""
    long = (searched.time_limit_s or 0) > _search.DEFAULT_TIME_LIMIT_S
    return {} if long else {"time_limit_s": None}
