"""SearchJob: everything of a search but its memory limit and batch sizes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.searched import Searched
from osdp.planning.core_inputs import (
    Space,
    beside_tensors,
    least_transient,
    make_model,
    make_request,
)
from osdp.planning.device_memory import total
from osdp.planning.plan_builder import Assembly

DEFAULT_TIME_LIMIT_S = 10.0  # of method="exact"
FIRST_PLAN_S = 0.1  # in which a plan that fits is usually found, where there is one


@dataclasses.dataclass(frozen=True)
class SearchJob:
    """A search but for its memory limit and batch sizes."""

    description: ModelDescription
    machine: Hardware
    ranks: int
    space: Space
    optimizer: str
    precision: str
    cost: str
    separate_reductions: bool
    searched: Searched
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    _made: list[_search.Model] = dataclasses.field(
        default_factory=list
    )  # one for all that are `at` something

    def limit_s(self) -> float:
        """Of the whole job; 0: none."""
        default = DEFAULT_TIME_LIMIT_S if self.searched.method == "exact" else 0.0
        return self.searched.time_limit_s or default

    def left_s(self) -> float:
        limit = self.limit_s()
        return limit - (time.monotonic() - self.began_s) if limit else float("inf")

    def at(self, exposed: float) -> SearchJob:
        """The same with another objective."""
        return dataclasses.replace(self, searched=dataclasses.replace(self.searched, exposed=exposed))

    def run(
        self,
        limit: int,
        batches: Sequence[tuple[int, int]],
        find_smallest: bool = False,
        time_limit_s: float | None = None,
        gap: float = 0.0,
    ) -> dict[str, Any]:
        """What the search finds; it ends where the best plan is known but for the share `gap`."""
        # A little time there always is, for a first plan.
        seconds = min(time_limit_s or float("inf"), max(self.left_s(), 0.01 * self.limit_s()))
        seconds = seconds if seconds < float("inf") else 0.0  # 0: no limit
        return _search.schedule(self.model, self.request(limit, batches, find_smallest), seconds, gap)

    @property
    def model(self) -> _search.Model:
        if not self._made:
            terms = beside_tensors(
                self.description,
                self.machine,
                self.ranks,
                self.searched.hosts,
                self.optimizer,
                self.separate_reductions,
            )
            self._made.append(
                make_model(self.description, self.machine, self.precision, self.searched.whole, total(terms))
            )
        return self._made[0]

    def request(
        self, limit: int, batches: Sequence[tuple[int, int]] = (), find_smallest: bool = False
    ) -> _search.Request:
        return make_request(
            self.machine,
            self.space,
            world_size=self.ranks,
            limit_bytes=limit,
            batches=batches,
            optimizer=self.optimizer,
            cost=self.cost,
            method=self.searched.method,
            least_transient_bytes=least_transient(self.description, self.precision),
            hosts=self.searched.hosts,
            prefetch=self.searched.prefetch,
            find_smallest=find_smallest,
            exposed=self.searched.exposed,
        )

    def assembly(self, limit: int) -> Assembly:
        return Assembly(
            self.description,
            self.machine,
            self.ranks,
            self.optimizer,
            self.precision,
            self.cost,
            self.separate_reductions,
            self.searched,
            limit,
            self.model,
            self.request(limit),
            self.at(self.machine.exposed_communication).request(limit),
        )
