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
# Note [The same plan on every rank]
# Where every rank searches for itself, all must find the same plan. A clock would end their searches at different
# points, so what a search does without a `time_limit` is bounded by steps that it counts (Budget in
# csrc/search/problem/problem.hpp). A `time_limit` is kept by the clock, and so is the default one of searches over
# limits (objective="memory", "batch").
DEFAULT_WORK = 500_000_000
# In which a plan that fits is usually found, where there is one.
FIRST_PLAN_S = 0.1
FIRST_PLAN_WORK = 10_000_000


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

    def counts_work(self) -> bool:
        """Whether steps bound its searches, in place of the clock: Note [The same plan on every rank]."""
        s = self.searched
        return s.method == "exact" and s.time_limit_s is None and s.objective == "throughput"

    def limit_s(self) -> float:
        """Of the whole job; 0: none."""
        timed = self.searched.method == "exact" and not self.counts_work()
        return self.searched.time_limit_s or (DEFAULT_TIME_LIMIT_S if timed else 0.0)

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
        work: int = 0,
    ) -> dict[str, Any]:
        """What the search finds; it ends where the best plan is known but for the share `gap`, or after `work` steps."""
        # A little time there always is, for a first plan.
        seconds = min(time_limit_s or float("inf"), max(self.left_s(), 0.01 * self.limit_s()))
        seconds = seconds if seconds < float("inf") else 0.0  # 0: no limit
        work = work or (DEFAULT_WORK if self.counts_work() else 0)
        return _search.schedule(self.model, self.request(limit, batches, find_smallest), seconds, gap, work)

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
