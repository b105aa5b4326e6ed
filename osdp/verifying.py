"""verify: a plan's certificate, checked from the plan alone."""

from __future__ import annotations

from osdp import _search
from osdp.costing import RECOMPUTE_CODES, choose_space, largest_untraced_unit, make_model, make_request
from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.plan import Plan
from osdp.simulating import plain_choice


def verify(plan: Plan) -> str:
    """Check a plan's certificate from the plan alone. Empty if it holds, else what is false.

    The costs of all choices are computed anew from description and hardware; the checker
    (csrc/search/phase_certificate.cpp) shares no code with the search. It proves: a step of the plan takes and
    its largest phase holds what the certificate says, that is within the limit, and no plan of this batch size
    and no larger transients is faster than the lower bound. Raises PlanMismatchError for a plan without
    certificate, hardware or the arguments of its search.
    """
    c, s = plan.certificate, plan.searched
    if c is None or s is None or plan.hardware is None or plan.world_size is None:
        raise PlanMismatchError(
            "the plan has no certificate: it was not made by osdp.search, or was changed since"
        )
    try:
        space = choose_space(s.modes, s.granularity or 1, s.checkpoint, plan.cost, s.hosts)
        model = make_model(plan.description, plan.hardware, plan.precision)
        request = make_request(
            plan.hardware,
            space,
            world_size=plan.world_size,
            limit_bytes=c.limit_bytes,
            batches=(),
            optimizer=plan.optimizer,
            cost=plan.cost,
            method="exact",
            least_transient_bytes=largest_untraced_unit(plan.description, plan.precision),
            hosts=s.hosts,
            prefetch=plan.prefetch,
        )
        if c.search_bound_ps > c.time_ps or (c.optimal and c.search_bound_ps != c.time_ps):
            return "the search's bound does not agree with the time"
        return str(
            _search.check_plan(
                model,
                request,
                (plan.batch_size, plan.accumulation),
                [plain_choice(plan.choices.get(o.name)) for o in plan.description.operators],
                [RECOMPUTE_CODES.index(plan.recompute.get(b.name)) for b in plan.description.blocks],
                c.time_ps,
                c.memory_bytes,
                c.lower_bound_ps,
                [(p.phase, p.numerator) for p in c.prices],
                c.price_denominator,
            )
        )
    except (_search.InvalidProblem, InvalidProblemError) as e:
        return str(e)
