"""SearchJob: everything of a search but its memory limit and batch sizes, and what is asked of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osdp import _search
from osdp.base.byte_sizes import format_bytes
from osdp.description.model_description import ModelDescription
from osdp.errors import InfeasibleError
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.plan.searched import Searched
from osdp.planning.core_inputs import (
    MOST_BATCH,
    Space,
    beside_tensors,
    least_transient,
    make_model,
    make_request,
)
from osdp.planning.device_memory import total
from osdp.planning.plan_builder import Assembly
from osdp.planning.runner_up_selection import best_by_playing

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

    def plan(self, limit: int, batches: Sequence[tuple[int, int]]) -> Plan:
        """The plan, or InfeasibleError with the smallest limit that works and its plan."""
        job, found = best_by_playing(self, limit, batches, find_smallest=True)
        if found["feasible"]:
            return job.assembly(limit).plan(found)
        least = found["smallest_limit"]
        if least <= limit:
            raise InfeasibleError(
                f"method={self.searched.method!r} found no plan that fits {format_bytes(limit)} in "
                f"{self.limit_s():g} s: give it a larger time_limit"
                + (", or use method='exact'" if self.searched.method != "exact" else "")
                + (" or 'dfs-smallest-first'" if self.searched.method == "dfs" else "")
            )
        smallest = batches or [(1, 1)]
        exact = dataclasses.replace(self, searched=dataclasses.replace(self.searched, method="exact"))
        # Some plan that fits is found at once; this one is for a message.
        found = exact.run(least, smallest, time_limit_s=FIRST_PLAN_S)
        if not found["feasible"]:
            found = exact.run(least, smallest)
        nearest = exact.assembly(least).plan(found)
        raise InfeasibleError(
            f"no plan fits {format_bytes(limit)}; the smallest that fits is {format_bytes(least)}: "
            + _summary(nearest),
            least,
            nearest,
        )

    def least_memory(self, limit: int, batches: Sequence[tuple[int, int]], at_least: float) -> Plan:
        """The plan of the smallest limit whose best plan gives so many samples/s over all ranks, to the byte; where
        time runs out, of the smallest limit by then.
        """

        def fast_enough(limit: int) -> tuple[SearchJob, Mapping[str, Any]] | None:
            job, best = best_by_playing(self, limit, batches)
            if not best["feasible"]:
                return None
            samples = self.ranks * best["batch_size"] * best["accumulation"]
            step_s = job.assembly(limit).step_ps(best) * 1e-12
            return (job, best) if samples >= at_least * step_s else None

        known = fast_enough(limit)
        if known is None:
            fastest = self.plan(limit, batches)
            assert fastest.predicted is not None
            raise InfeasibleError(
                f"no plan that fits {format_bytes(limit)} gives {at_least:g} samples/s; "
                f"the best gives {fastest.predicted.throughput:g}",
                None,
                fastest,
            )
        low, high = 0, int(known[1]["peak_bytes"])
        while high - low > 1 and self.left_s() > 0:
            middle = (low + high) // 2
            less = fast_enough(middle)
            if less is None:
                low = middle
            else:
                known, high = less, max(low + 1, min(middle, int(less[1]["peak_bytes"])))
        job, best = known
        return job.assembly(high).plan(best)

    def largest_batch(self, limit: int, batches: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The largest size per rank that fits; the smallest where none does; where time runs out, the largest that
        is known to fit.
        """

        def fits(batch: tuple[int, int]) -> bool:
            # Any plan will do, and the first one is known at once.
            return self.left_s() > 0 and any(
                self.run(limit, [batch], time_limit_s=s)["feasible"] for s in (FIRST_PLAN_S, None)
            )

        if batches:
            return next((b for b in sorted(batches, reverse=True) if fits(b)), min(batches))
        return (_last_true(lambda b: fits((b, 1)), MOST_BATCH), 1)

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


def _summary(plan: Plan) -> str:
    counts: dict[str, int] = {}
    for choice in plan.choices.values():
        counts[choice.mode] = counts.get(choice.mode, 0) + 1
    parts = [f"batch {plan.batch_size}"]
    parts.append(
        f"all {next(iter(counts))}" if len(counts) == 1 else ", ".join(f"{n} {m}" for m, n in counts.items())
    )
    slices = max((c.granularity for c in plan.choices.values()), default=1)
    if slices > 1:
        parts.append(f"granularity {slices}")
    if plan.recompute:
        parts.append(f"{len(plan.recompute)} blocks recomputed")
    return ", ".join(parts)


def _last_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest n in 1..most that holds; what holds for n holds for less. 1 where none does."""
    low, high = 1, 2
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
