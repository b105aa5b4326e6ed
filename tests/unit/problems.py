"""Search problems for tests, with all that a search may choose from unless said otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.searched import Searched
from osdp.planning.objectives import best_plan
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import choose_space


@contextmanager
def limits_of_sums() -> Iterator[None]:
    """`osdp.search` holds what a certificate counts against its limit, which is what brute force knows, and not what the
    plan's own step can hold."""
    with mock.patch(
        "osdp.planning.search.best_plan", lambda problem, limit, _=True: best_plan(problem, limit, True)
    ):
        yield


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
