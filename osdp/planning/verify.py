"""verify: checks a plan's claims from the plan alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from osdp import _search
from osdp.errors import InfeasibleError, InvalidProblemError, PlanMismatchError
from osdp.hardware.hardware import check_hardware
from osdp.plan.certificate import Certificate
from osdp.plan.plan import Plan
from osdp.plan.searched import COST_VERSION, Searched
from osdp.plan.validation import problems
from osdp.planning.core_choices import core_plan
from osdp.planning.plan_builder import plan_of, step_bound_ps
from osdp.planning.search import search_again
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import choose_space


def verify(plan: Plan, *, search: bool = False) -> str:
    """Check every claim of a plan from the plan alone. Returns "" if all hold, else what is false.

    Everything follows from `description`, `hardware` and the other arguments of the search, and from the decisions
    (`choices`, `recompute`, `batch_size`, `accumulation`): the costs of all choices are recomputed, the
    certificate is checked by code that is independent of the search
    (csrc/search/certificate/plan_certificate.cpp), and units and predictions are recomputed and compared. It
    proves that a step's time and its largest phase's memory are those of the certificate, that this memory is
    within the limit, and that no plan of this batch size and no larger transients is faster than
    `lower_bound_ps`.

    `search_bound_ps`, `optimal` and `proven`, which are about plans of all batch sizes and transients, cannot be proven
    by multipliers. A plan that is called `proven` is searched again with the same arguments, for about as long as its
    objective was. `search_bound_ps` of another is a statement of a search that was stopped: it must not contradict the
    rest, and `search=True` searches again for it, too. docs/plan.md lists field by field what is checked.

    A plan of an older OSDP is checked with the cost model of its version (`searched.cost_version`); its
    simulated step time and peak (`predicted.step_time_s` and its parts, `predicted.peak_memory_bytes`) are not compared.

    Raises PlanMismatchError for a plan without certificate, hardware or the arguments of its search, and with `search`
    where its costs are of an older version.

    >>> assert osdp.verify(osdp.Plan.load("plan.json")) == ""
    """
    c, s = plan.certificate, plan.searched
    if c is None or s is None or plan.hardware is None or plan.world_size is None:
        raise PlanMismatchError(
            "the plan has no certificate: it was not made by osdp.search, or was changed afterwards"
        )
    try:
        check_hardware(plan.hardware)
        for where, why in problems(plan):
            return f"{where}: {why}"
        for why in _disagreements(plan, c, s):
            return why
        choose_space(s.modes, s.granularity or 1, s.checkpoint, plan.cost, s.hosts)  # may raise
        wrong = {version: _check_costs(plan, c, s, version) for version in s.costs()}
        held = [version for version, why in wrong.items() if not why]
        if not held:
            return wrong[s.costs()[-1]]
        if search and s.cost_version < COST_VERSION:
            raise PlanMismatchError(
                f"the plan uses cost version {s.cost_version}, and this osdp searches with version "
                f"{COST_VERSION}: what the certificate proves holds, but the search cannot be repeated"
            )
        return _search_again(plan, c, held[-1]) if search or c.proven else ""
    except (_search.InvalidProblem, InvalidProblemError) as e:
        return str(e)


def _check_costs(plan: Plan, c: Certificate, s: Searched, cost_version: int) -> str:
    """The first claim of the plan that is false under the costs of that version, or ""."""
    problem = SearchProblem.of(plan).changed(cost_version=cost_version)
    if wrong := _check_certificate(plan, c, problem):
        return wrong
    made = plan_of(problem, _answer(problem, plan, c))
    if cost_version == COST_VERSION and (wrong := _check_step(plan, c, problem)):
        return wrong
    but = _PLAYED if cost_version < COST_VERSION else ()
    if plan.predicted is not None and plan.predicted.peak_memory_bytes == c.memory_bytes:
        but += ("predicted.peak_memory_bytes",)  # older predictions contain the sum itself
    said = replace(plan, searched=replace(s, cost_version=cost_version))
    return next(_differences("", said, made, but), "")


def _disagreements(plan: Plan, c: Certificate, s: Searched) -> Iterator[str]:
    """Differences between facts that the plan states twice."""
    assert plan.world_size is not None
    if plan.prefetch != s.prefetch:
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
    if (
        c.search_bound_ps > c.time_ps
        or c.optimal != (c.search_bound_ps == c.time_ps)
        or (c.optimal and not c.proven)
    ):
        yield "the search's bound contradicts the time"
    if c.proven and plan.memory_limit_bytes is not None and c.limit_bytes < plan.memory_limit_bytes:
        yield (
            f"the proof covers plans of up to {c.limit_bytes} bytes, fewer than the {plan.memory_limit_bytes} of "
            "memory_limit_bytes"
        )


def _check_certificate(plan: Plan, c: Certificate, problem: SearchProblem) -> str:
    assert plan.searched is not None
    planner = problem.planner
    given = (planner.model, planner.request(plan.searched.exposed, c.limit_bytes), core_plan(plan))
    prices = [(p.phase, p.numerator) for p in c.prices]
    if wrong := _search.check_plan(
        *given, c.time_ps, c.memory_bytes, c.lower_bound_ps, prices, c.price_denominator
    ):
        return wrong
    proven = min(_search.plan_lower_bounds(*given, [prices], c.price_denominator)[0], c.time_ps)
    if c.lower_bound_ps != proven:
        return f"the prices prove {proven} ps, but the certificate says {c.lower_bound_ps}"
    return ""


def _check_step(plan: Plan, c: Certificate, problem: SearchProblem) -> str:
    """The simulated step, and the bound on that of every plan, which is proven again."""
    assert plan.memory_limit_bytes is not None and plan.searched is not None
    if problem.cost != "osdp":
        return "" if c.step_ps == c.step_bound_ps == 0 else "only cost='osdp' has a simulated step"
    played = problem.planner.play(core_plan(plan)).step_ps
    if c.step_ps != played:
        return f"a step takes {played} ps when it is simulated, but the certificate says {c.step_ps}"
    if c.step_bound_ps == 0:
        return ""
    one = {"batch_size": plan.batch_size} if plan.searched.objective == "batch" else {}
    planner, samples = problem.planner, plan.batch_size * plan.accumulation
    proven = 0
    for gap in (
        plan.searched.gap,
        plan.searched.gap / 10,
    ):  # a search that was stopped may have tried other shares
        wish = problem.changed(gap=gap, **one).wish(plan.memory_limit_bytes)
        proven = max(proven, step_bound_ps(planner.step_bound_s_per_sample(wish), samples))
        if c.step_bound_ps <= proven:
            return ""
    return f"the bound on a simulated step is {proven} ps, but the certificate says {c.step_bound_ps}"


def _answer(problem: SearchProblem, plan: Plan, c: Certificate) -> _search.Answer:
    """The plan's decisions as an answer of the search."""
    assert plan.searched is not None
    core = core_plan(plan)
    return _search.Answer(
        plan=core,
        step_ps=c.time_ps,
        peak_bytes=c.memory_bytes,
        largest_peak_bytes=problem.planner.largest_peak(core, c.memory_bytes),
        limit_bytes=plan.memory_limit_bytes or 0,
        sum_limit_bytes=c.limit_bytes,
        exposed=plan.searched.exposed,
        optimal=c.optimal,
        proven=c.proven,
        step_bound_s_per_sample=0.0,
        prices=[(p.phase, p.numerator / c.price_denominator) for p in c.prices],
        played=problem.planner.play(core) if problem.cost == "osdp" else None,
    )


# Readable text, and fields that `_check_certificate` has checked.
_NOT_COMPARED = ("reason", "certificate")
# Results of the simulator, which depend on its version.
_PLAYED = tuple(
    f"predicted.{what}"
    for what in (
        "step_time_s",
        "throughput",
        "communication_s",
        "compute_s",
        "optimizer_s",
        "peak_memory_bytes",
    )
)


def _differences(path: str, said: Any, made: Any, but: Collection[str] = ()) -> Iterator[str]:
    """Fields whose value in the plan (`said`) differs from the recomputed one (`made`), except the fields in
    `but`."""
    if path in but:
        return
    if is_dataclass(said) and type(said) is type(made):
        for f in fields(said):
            if f.name not in _NOT_COMPARED:
                inner = f"{path}.{f.name}" if path else f.name
                yield from _differences(inner, getattr(said, f.name), getattr(made, f.name), but)
    elif isinstance(said, Mapping) and isinstance(made, Mapping) and said.keys() == made.keys():
        for key in said:
            yield from _differences(f"{path}.{key}", said[key], made[key], but)
    elif said != made:
        yield f"{path} is {said!r:.200}, but the plan's decisions give {made!r:.200}"


def _search_again(plan: Plan, c: Certificate, cost_version: int) -> str:
    """Whether an exact search under the same limit of the sum comes to what the certificate says of the search."""
    assert plan.searched is not None and plan.memory_limit_bytes is not None
    s, hardware = plan.searched, plan.hardware
    assert hardware is not None
    try:
        best = search_again(
            plan,
            c.limit_bytes,
            limit_is_of_sum=True,
            hardware=replace(hardware, exposed_communication=s.exposed),
            objective="throughput",  # with the limit that objective="memory" found
            at_least=None,
            batch_size=plan.batch_size if s.objective == "batch" else s.batch_size,
            replay=0.0,
            method="exact",
            # What was proven within a short time takes another machine longer: steps are counted there.
            time_limit_s=s.time_limit_s if (s.time_limit_s or 0) > _search.DEFAULT_TIME_LIMIT_S else None,
            cost_version=cost_version,
        )
    except InfeasibleError as e:
        return f"a repeated search finds no plan: {e}"
    other = best.certificate
    assert other is not None
    samples, others = plan.batch_size * plan.accumulation, best.batch_size * best.accumulation
    if other.time_ps * samples < c.search_bound_ps * others:
        return (
            f"the search's bound is {c.search_bound_ps} ps for {samples} samples, but a plan of batch {others} takes "
            f"{other.time_ps} ps"
        )
    if not c.optimal and other.search_bound_ps * samples < c.search_bound_ps * others and not other.optimal:
        return "the search's bound could not be proven again in the same time"
    if c.proven and not other.optimal:
        return "the optimum could not be proven again in the same time"
    # The bound of a plan that was preferred for its simulated step is a rounded product.
    rounding = 1 + c.search_bound_ps // 10**9
    if c.proven and other.time_ps * samples > (c.search_bound_ps + rounding) * others:
        return (
            f"the search says that a plan takes {c.search_bound_ps} ps for {samples} samples, but the fastest, of batch "
            f"{others}, takes {other.time_ps} ps"
        )
    return ""
