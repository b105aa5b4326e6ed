"""Search problems for tests, with all that a search may choose from unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.plan.searched import Searched
from osdp.planning.core_choices import core_plan
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import choose_space


def problem_of(
    description: ModelDescription,
    hardware: Hardware,
    ranks: int,
    *,
    modes: str | Sequence[str] = "auto",
    granularity: str | int | Sequence[int] = "auto",
    checkpoint: str | bool | Sequence[str] = "auto",
    cost: str = "osdp",
    hosts: int = 1,
    precision: str = "fp32",
    **searched: Any,
) -> SearchProblem:
    """For AdamW; `searched`: other fields of it."""
    space = choose_space(modes, granularity, checkpoint, cost, hosts)
    asked = Searched(space.modes, space.granularities, space.checkpoint, hosts=hosts, **searched)
    return SearchProblem(description, hardware, ranks, "adamw", precision, cost, False, asked)


def indexed(problem: SearchProblem, plan: Plan) -> tuple[_search.Batch, list[int], list[str], int]:
    """The plan, its choices as indices into their candidates."""
    planner, core = problem.planner, core_plan(plan)
    ways = dict(zip((b.name for b in plan.description.blocks), core.blocks, strict=True))
    picked = []
    for i, o in enumerate(plan.description.operators):
        way = "none" if o.block is None else ways[o.block]
        found = _search.candidates(planner.model, planner.request(), i, way)
        picked.append(next((k for k, c in enumerate(found) if c.is_choice(core.choices[i])), -1))
    return core.batch, picked, core.blocks, core.prefetch
