"""Converts the answer of csrc/search to a Plan with its prediction and certificate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from osdp import _search
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import BatchProof, Certificate, PhasePrice
from osdp.plan.validation import validate
from osdp.plan.whole_operators import whole_operators
from osdp.planning.choice_reasons import Treated, predict
from osdp.planning.core_choices import choice_of, core_plan
from osdp.planning.core_inputs import signature
from osdp.planning.search_problem import SearchProblem

# Of a certificate's prices in ps per byte: the largest power of two up to this with which the highest price fits. Prices
# at which batches that are little too large exceed a step are high.
MOST_DENOMINATOR, MOST_NUMERATOR = 2**24, 2**46
SAME_BOUND = 1e-6  # of the step's time


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
        prefetch=answer.plan.prefetch,
        gather_bytes=answer.plan.gather_bytes,
        separate_reductions=problem.separate_reductions,
        searched=searched,
        predicted=predict(
            problem,
            answer,
            treated,
            simulated=problem.cost == "osdp",
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
    forward, backward, link, averages, reductions = answer.proof.shares
    highest = max((price for *_, prices in answer.proof.parts for _, price in prices), default=0.0)
    denominator = MOST_DENOMINATOR
    while denominator > 1 and highest * denominator > MOST_NUMERATOR:
        denominator //= 2
    batches = tuple(
        BatchProof(least, most, accumulation, tuple(_rounded(prices, denominator)))
        for least, most, accumulation, prices in answer.proof.parts
    )
    c = Certificate(
        step_ps=answer.played.step_ps,
        step_bound_ps=answer.step_bound_ps,
        checked_bound_ps=0,
        forward_share=forward,
        backward_share=backward,
        link_share=link,
        averages_share=averages,
        reductions_share=reductions,
        batches=batches,
        price_denominator=denominator,
    )
    if not batches:
        return c
    proven = min(c.step_ps, checked_bound_ps(problem, c, answer.limit_bytes, answer.plan.batch))
    # Rounded prices prove a little less than the search did; what is proven either way needs no search to be checked.
    alike = abs(c.step_bound_ps - proven) <= SAME_BOUND * c.step_ps and not c.optimal
    return dataclasses.replace(
        c, checked_bound_ps=proven, step_bound_ps=proven if alike else max(c.step_bound_ps, proven)
    )


def _rounded(prices: Sequence[tuple[int, float]], denominator: int) -> Iterator[PhasePrice]:
    for phase, price in prices:
        if numerator := min(round(price * denominator), MOST_NUMERATOR):
            yield PhasePrice(phase, numerator)


def checked_bound_ps(problem: SearchProblem, c: Certificate, limit: int, batch: _search.Batch) -> int:
    """What `c.batches` prove of a step of this batch under that memory limit. Raises InvalidProblem where they leave out a
    batch size of the search."""
    of_one = problem.searched.objective == "batch"  # plans of the largest batch alone
    return _search.proven_bound_ps(
        problem.planner.model,
        bound_request(problem, c, limit, [batch] if of_one else None),
        batch.samples(),
        [
            (b.least_batch, b.most_batch, b.accumulation, [(p.phase, p.numerator) for p in b.prices])
            for b in c.batches
        ],
        c.price_denominator,
    )


def bound_request(
    problem: SearchProblem, c: Certificate, limit: int, batches: list[_search.Batch] | None = None
) -> _search.Request:
    """What the checker of a certificate needs to know of the search; `batches`: by default the search's."""
    shares = (c.forward_share, c.backward_share, c.link_share, c.averages_share, c.reductions_share)
    return problem.planner.bound_request(shares, limit, problem.batches() if batches is None else batches)
