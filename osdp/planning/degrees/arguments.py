"""Checks the arguments of `osdp.search` for degrees, and starts the search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osdp.description.model_description import ModelDescription
from osdp.errors import InvalidProblemError
from osdp.plan.parallel_plan import SCHEDULES, ParallelPlan
from osdp.planning.arguments import integer, one_of
from osdp.planning.degrees.search_degrees import Search, search_degrees
from osdp.planning.degrees.styles import fitting, plan_of, styles_of
from osdp.planning.search_problem import SearchProblem

AUTO = "auto"


def degrees_asked(
    tensor: int | str | None, pipeline: int | str | None, tp_plan: object, schedule: str
) -> bool:
    """Whether the search also decides, or has, degrees."""
    one_of("schedule", schedule, (AUTO, *SCHEDULES))
    if tensor is None and tp_plan is not None:
        raise InvalidProblemError(
            "tp_plan is given, but tensor_parallel is not: set it to 'auto' or a number of ranks"
        )
    if pipeline is None and schedule != AUTO:
        raise InvalidProblemError(
            "schedule is given, but pipeline_parallel is not: set it to 'auto' or a number of stages"
        )
    return tensor is not None or pipeline is not None


def searched_degrees(
    model: Any,
    problem: SearchProblem,
    limit_bytes: int,
    *,
    tensor: int | str | None,
    pipeline: int | str | None,
    tp_plan: Mapping[str, Any] | None,
    schedule: str,
) -> ParallelPlan:
    """The plan for these arguments of `osdp.search`, and for `problem`, which has the others. Raises InvalidProblemError
    naming the one that makes no sense."""
    if problem.cost != "osdp" or problem.searched.objective != "throughput":
        raise InvalidProblemError("degrees are searched with cost='osdp' and objective='throughput' only")
    global_batch_size, ranks, hosts = (
        problem.searched.global_batch_size,
        problem.ranks,
        problem.searched.hosts,
    )
    if global_batch_size is None:
        raise InvalidProblemError(
            "degrees are compared for the same samples a step: set global_batch_size= (batch_size is that of a "
            "micro-batch)"
        )
    whole = integer(global_batch_size, "global_batch_size")
    if not 1 <= whole <= 2**40:
        raise InvalidProblemError(f"global_batch_size is {whole}; it must be between 1 and 2**40")
    if problem.searched.batch_size is not None and problem.searched.batch_size < 1:
        raise InvalidProblemError(
            f"batch_size is {problem.searched.batch_size}; a micro-batch has at least 1 sample"
        )
    t, p = _degree("tensor_parallel", tensor, ranks), _degree("pipeline_parallel", pipeline, ranks)
    if t is not None and p is not None and ranks % (t * p):
        raise InvalidProblemError(
            f"tensor_parallel={t} x pipeline_parallel={p} does not divide the world size {ranks}"
        )
    per_host = ranks // hosts
    if t is not None and (t > per_host or per_host % t):
        raise InvalidProblemError(
            f"tensor_parallel={t}: its ranks must divide a host's, {per_host} ({ranks} ranks on hosts={hosts})"
        )
    styles: dict[str, str] = {}
    plan: dict[str, str] = {}
    if t != 1:
        plan = plan_of(tp_plan, None if isinstance(model, ModelDescription) else model)
        if tp_plan is None:
            plan = fitting(plan, problem.description)
        styles = styles_of(problem.description, plan)
        if t is not None and not any(s.startswith(("colwise", "rowwise")) for s in styles.values()):
            raise InvalidProblemError(
                f"tensor_parallel={t} needs tp_plan=, torch's styles by module name ({{'*.up': ColwiseParallel(), ...}}), "
                "or a model of transformers that has its own: no operator would be shared"
            )
    return search_degrees(
        Search(
            problem.changed(global_batch_size=whole),
            limit_bytes,
            tensor=t,
            pipeline=p,
            styles=styles,
            tp_plan=plan if styles else {},
            schedule=None if schedule == AUTO else schedule,
        )
    )


def _degree(what: str, asked: int | str | None, ranks: int) -> int | None:
    """None for "auto"."""
    if isinstance(asked, str):
        if asked != AUTO:
            raise InvalidProblemError(f"{what} must be 'auto' or a number of ranks, got {asked!r}")
        return None
    n = 1 if asked is None else integer(asked, what)
    if n < 1 or ranks % n:
        raise InvalidProblemError(f"{what}={n} does not divide the world size {ranks}")
    return n
