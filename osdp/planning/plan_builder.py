"""Converts the answer of csrc/search to a Plan with its prediction and certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from osdp import _search
from osdp.plan.certificate import Certificate, PhasePrice
from osdp.plan.plan import Plan
from osdp.plan.validation import validate
from osdp.plan.whole_operators import whole_operators
from osdp.planning.choice_reasons import Treated, predict
from osdp.planning.core_choices import choice_of, core_plan
from osdp.planning.core_inputs import signature
from osdp.planning.search_problem import SearchProblem

PRICE_DENOMINATOR = 2**30  # of a certificate's prices, in ps per byte


def plan_of(problem: SearchProblem, answer: _search.Answer) -> Plan:
    """The plan in `answer`."""
    description, searched = problem.description, problem.searched
    names = [o.name for o in description.operators]
    way_of_block = {b.name: way for b, way in zip(description.blocks, answer.plan.blocks, strict=True)}
    recompute = {
        o.block: way
        for o in description.operators
        if o.block is not None and (way := way_of_block[o.block]) != "none"
    }
    treated = treatments(problem, answer.plan, way_of_block)
    units = _units(problem, answer.plan)
    certificate = _certificate(problem, answer)
    plan = Plan(
        description=description,
        hardware=problem.hardware,
        world_size=problem.ranks,
        choices={
            name: choice_of(t.chosen.choice) for name, t in zip(names, treated, strict=True) if t is not None
        },
        units=units,
        recompute=recompute,
        batch_size=answer.plan.batch.size,
        optimizer=problem.optimizer,
        precision=problem.precision,
        cost=problem.cost,
        memory_limit_bytes=answer.limit_bytes,
        accumulation=answer.plan.batch.accumulation,
        prefetch=searched.prefetch,
        gather_bytes=answer.plan.gather_bytes,
        separate_reductions=problem.separate_reductions,
        searched=dataclasses.replace(searched, exposed=answer.exposed),
        predicted=predict(
            problem,
            answer,
            treated,
            played=answer.played if problem.cost == "osdp" else None,
            recompute=recompute,
        ),
        certificate=certificate,
    )
    return validate(plan)


def units_of(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """The units that the search of `plan` would give its choices."""
    return _units(SearchProblem.of(plan), core_plan(plan))


def _units(problem: SearchProblem, plan: _search.Plan) -> tuple[tuple[str, ...], ...]:
    operators = problem.description.operators
    return tuple(tuple(operators[i].name for i in unit) for unit in problem.planner.units(plan))


def treatments(
    problem: SearchProblem, plan: _search.Plan, way_of_block: Mapping[str, str]
) -> list[Treated | None]:
    """The candidates and the chosen one of each operator; None for those without parameters. Costs are those
    of the hardware's communication.
    """
    planner = problem.planner
    request = planner.request()
    whole = whole_operators(problem.description, problem.searched.whole)
    known: dict[object, list[_search.Candidate]] = {}  # of operators that are alike
    treated: list[Treated | None] = []
    for i, (o, choice) in enumerate(zip(problem.description.operators, plan.choices, strict=True)):
        if not o.parameters:
            treated.append(None)
            continue
        way = "none" if o.block is None else way_of_block[o.block]
        key = (signature(o), way, o.name in whole)
        if key not in known:
            known[key] = _search.candidates(planner.model, request, i, way)
        chosen = next(c for c in known[key] if c.is_choice(choice))
        treated.append(Treated(known[key], chosen))
    return treated


def _certificate(problem: SearchProblem, answer: _search.Answer) -> Certificate:
    limit = answer.sum_limit_bytes
    request = problem.planner.request(answer.exposed, limit)
    rounded = [(phase, min(round(price * PRICE_DENOMINATOR), 2**56)) for phase, price in answer.prices]
    alternatives: list[list[tuple[int, int]]] = [
        [],
        rounded,
    ]  # where memory does not bind, no multiplier proves more
    bounds = _search.plan_lower_bounds(
        problem.planner.model, request, answer.plan, alternatives, PRICE_DENOMINATOR
    )
    best = max(zip(bounds, alternatives, strict=True), key=lambda known: known[0])
    step = answer.step_ps
    bound = int(answer.lower_bound_s_per_sample * 1e12 * answer.plan.batch.samples())
    return Certificate(
        time_ps=step,
        memory_bytes=answer.peak_bytes,
        limit_bytes=limit,
        lower_bound_ps=min(best[0], step),
        search_bound_ps=step if answer.optimal else max(0, min(bound, step - 1)),
        prices=tuple(PhasePrice(phase, numerator) for phase, numerator in best[1]),
        price_denominator=PRICE_DENOMINATOR,
        optimal=answer.optimal,
        proven=answer.proven,
        step_ps=answer.played.step_ps if problem.cost == "osdp" else 0,
        step_bound_ps=step_bound_ps(answer.step_bound_s_per_sample, answer.plan.batch.samples()),
    )


def step_bound_ps(s_per_sample: float, samples: int) -> int:
    """A bound per sample as that of a step of `samples`, rounded down."""
    return int(s_per_sample * 1e12 * samples)
