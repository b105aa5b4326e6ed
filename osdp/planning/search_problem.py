"""SearchProblem: the problem shared by `search`, `verify`, `simulate`, `frontier` and a plan's file."""

from __future__ import annotations

import dataclasses
from functools import cached_property

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.errors import PlanMismatchError
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.plan.searched import OBJECTIVES, Searched
from osdp.plan.unit_grouping import BUCKET_BYTES, places_of
from osdp.planning.arguments import batches_of
from osdp.planning.core_inputs import (
    SLICE_OVERHEAD_S,
    OperatorTimes,
    around_operators,
    beside_tensors,
    core_collective,
    gathered_bytes,
    gathering_calls,
    make_device,
    make_model,
)
from osdp.planning.device_memory import total
from osdp.planning.optimizer_states import optimizer_state
from osdp.planning.search_space import PREFETCHES


@dataclasses.dataclass(frozen=True)
class SearchProblem:
    """A search problem without its memory limit.

    >>> problem = SearchProblem.of(plan)
    >>> problem.planner.search(problem.wish(2**30)).throughput(problem.ranks)
    """

    description: ModelDescription
    hardware: Hardware
    ranks: int
    optimizer: str
    precision: str
    cost: str
    separate_reductions: bool
    searched: Searched

    @classmethod
    def of(cls, plan: Plan) -> SearchProblem:
        """The problem for which the plan was searched. Raises PlanMismatchError if the plan does not record
        it."""
        if plan.searched is None or plan.hardware is None or plan.world_size is None:
            raise PlanMismatchError("the plan was not made by osdp.search: there is no search to repeat")
        return cls(
            plan.description,
            plan.hardware,
            plan.world_size,
            plan.optimizer,
            plan.precision,
            plan.cost,
            plan.separate_reductions,
            plan.searched,
        )

    @cached_property
    def planner(self) -> _search.Planner:
        """The C++ planner of this problem."""
        searched = self.searched
        model = make_model(
            self._without_held_inputs(),
            self.hardware,
            self.precision,
            searched.whole,
            self._held_always(),
            self.kernels_batch(),
            None if searched.stage is None else searched.stage.collectives,
        )
        # It must not refer to this problem: a cycle through C++ is never freed.
        times = OperatorTimes(self.description, self.hardware, self.precision)
        return _search.Planner(
            model,
            self.request(),
            self.manner(),
            (lambda batch: times.model_at(int(batch))) if self.times_vary() else None,
        )

    def planner_of(self, model: _search.Model, manner: _search.Manner) -> _search.Planner:
        """The same of a model and a manner that were made otherwise."""
        return _search.Planner(model, self.request(), manner)

    def request(self) -> _search.Request:
        """The search request, without limit and batches."""
        searched, paper = self.searched, self.cost == "paper"
        return _search.Request(
            device=make_device(self.hardware, self.ranks, searched.hosts, paper),
            paper=paper,
            modes=list(searched.modes),
            granularities=list(searched.granularity),
            prefetches=self._prefetches(),
            optimizer=optimizer_state(self.optimizer).core(),
            bucket_bytes=BUCKET_BYTES,
            slice_overhead_s=0.0 if paper else SLICE_OVERHEAD_S,
            recompute=list(searched.checkpoint),
            depth_first=searched.method != "exact",
            smallest_first=searched.method == "dfs-smallest-first",
            in_flight=1 if searched.stage is None else searched.stage.in_flight,
            stage_micro_batches=0 if searched.stage is None else searched.stage.micro_batches,
        )

    def _prefetches(self) -> list[int]:
        if self.searched.prefetch is not None:
            return [self.searched.prefetch]
        return [1] if self.cost == "paper" else list(PREFETCHES)

    def manner(self) -> _search.Manner:
        """How the runtime carries out its plans."""
        enqueue = self.hardware.device != "cpu"  # its lanes are streams
        sizes = {o.name: gathered_bytes(o, self.precision) for o in self.description.operators}
        return _search.Manner(
            places=places_of(self.description, sizes, gathering_calls(self.description)),
            small_unit_bytes=self.searched.small_unit_bytes,
            separate_reductions=self.separate_reductions and enqueue,
            enqueue=enqueue,
            delay=core_collective(self.hardware.communication_delay),
            stolen_permille=round(self.hardware.stolen_computation * 1000),
        )

    def around_operators(self) -> tuple[list[tuple[str, int]], int, int]:
        """What a core model has besides operators."""
        return around_operators(self._without_held_inputs(), self._held_always())

    def _without_held_inputs(self) -> ModelDescription:
        """A stage holds the inputs of all micro-batches throughout (`Stage.held_bytes`), not of those in flight."""
        d = self.description
        return d if self.searched.stage is None else dataclasses.replace(d, input_bytes_per_sample=0)

    def _held_always(self) -> int:
        """Besides operators' state and buffers."""
        hosts, searched = self.searched.hosts, self.searched
        held = 0 if searched.stage is None else searched.stage.held_bytes
        return held + total(
            beside_tensors(
                self.description,
                self.hardware,
                self.ranks,
                hosts,
                self.optimizer,
                self.separate_reductions,
                searched.stage,
            )
        )

    def kernels_batch(self) -> int:
        """The batch whose times of kernels the certificate has: Note [Times of kernels] in core_inputs.py."""
        s = self.searched
        return s.batch_size or s.kernels_batch or max(1, self.description.sample_batch)

    def times_vary(self) -> bool:
        """Whether the search chooses the batch and the times depend on it by kernels, not along a line."""
        rates, timed = self.hardware.kernel_rates, self.hardware.gamma_s
        return (
            self.cost == "osdp"
            and rates is not None
            and self.searched.batch_size is None
            and any(o.forward_kernels >= 0 and o.name not in timed for o in self.description.operators)
        )

    def wish(self, limit: int, gap: float | None = None) -> _search.Wish:
        """The input of `planner.search` under `limit` bytes; `gap`: another than the problem's."""
        s = self.searched
        return _search.Wish(
            limit_bytes=limit,
            batches=self.batches(),
            objective=OBJECTIVES.index(s.objective),
            at_least=s.at_least or 0.0,
            gap=s.gap if gap is None else gap,
            time_limit_s=s.time_limit_s or 0.0,
        )

    def batches(self) -> list[_search.Batch]:
        """Micro-batches that plans may have; empty: of every size."""
        size, of_all = self.searched.batch_size, self.searched.global_batch_size
        return [_search.Batch(*b) for b in batches_of("auto" if size is None else size, of_all, self.ranks)]

    def changed(self, **changes: object) -> SearchProblem:
        """This problem with other fields of `searched`."""
        return dataclasses.replace(self, searched=dataclasses.replace(self.searched, **changes))  # type: ignore[arg-type]
