"""The pipelines of one candidate, under uniform plans or searched ones, with their first cuts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from osdp import _search
from osdp.plan.choice import MODES
from osdp.planning.degrees.candidates import Candidate, Sharing
from osdp.planning.degrees.cuts import CutPipeline, Pipelines, StageOf, balanced
from osdp.planning.degrees.layout import Layout
from osdp.planning.degrees.stage_search import Effort, StageResult, StageSearches, most_bytes
from osdp.planning.search_problem import SearchProblem

EVERY_MODE = MODES  # of those that are asked for
EVERY_WAY = ("none", "hold")


class CandidatePipelines:
    """What is known of one candidate's pipelines."""

    def __init__(
        self,
        candidate: Candidate,
        sharing: Sharing,
        whole: SearchProblem,
        limit_bytes: int,
        schedules: Sequence[str],
    ) -> None:
        self.candidate, self.sharing, self.whole, self.limit_bytes = candidate, sharing, whole, limit_bytes
        self.hardware, self.searched_with, self.schedules = whole.hardware, whole.searched, schedules
        self.layout = Layout(candidate.degrees, whole.ranks // whole.searched.hosts)

    @cached_property
    def searches(self) -> StageSearches:
        machine = self.layout.machine(self.hardware)
        hosts = self.layout.data_hosts
        return StageSearches(self.candidate, self.sharing, machine, hosts, self.whole, self.limit_bytes)

    def pipelines(self, stage_of: StageOf) -> Pipelines:
        return Pipelines(
            links=self.sharing.chain.most_stages,
            stages=self.candidate.degrees.pipeline,
            schedules=self.schedules,
            micro_batches=self.candidate.micro_batches,
            most_bytes=most_bytes(self.limit_bytes),
            stage_of=stage_of,
            step_of=lambda schedule, times: self._played(schedule, times).step_ps,
            sends=self.send_ps,
        )

    def send_ps(self, stage: int, link: int) -> int:
        """Activations of a micro-batch, to the stage that begins at `link`."""
        size = self.sharing.chain.links[link].boundary_bytes_per_sample * self.candidate.batch
        return round(self.layout.send_s(self.hardware, stage, size) * 1e12)

    @cached_property
    def first_cut(self) -> tuple[int, ...]:
        return balanced(self.sharing.link_seconds(self.candidate.batch), self.candidate.degrees.pipeline)

    def uniform(
        self, modes: Sequence[str], ways: Sequence[str], rounds: int, cut: Sequence[int] | None = None
    ) -> CutPipeline:
        """Each stage's best plan of one mode; boundaries are moved in so many rounds, further while a stage does not fit."""
        own = tuple(m for m in modes if m in self.searched_with.modes) or modes
        allowed = self.searched_with.checkpoint
        again = tuple(w for w in ways if w in allowed) or allowed[:1]

        def of(first: int, end: int, flight: int) -> StageResult:
            return self.searches.uniform(first, end, flight, own, again)

        found = self.pipelines(of).improved(cut or self.first_cut, rounds)
        if not found.fits and rounds and found.peak_bytes <= 1.3 * self.limit_bytes:
            found = self.pipelines(of).improved(found.cuts, 4 * rounds)
        return found

    def searched(self, cut: Sequence[int], effort: Effort, rounds: int) -> CutPipeline:
        return self.pipelines(lambda first, end, f: self.searches.searched(first, end, f, effort)).improved(
            cut, rounds
        )

    def idle_share(self, pipeline: CutPipeline) -> float:
        """Of all ranks' time, in which a stage waits for another."""
        times = self.pipelines(_never).times(pipeline.stages, pipeline.cuts)
        played = self._played(pipeline.schedule, times)
        return 1 - sum(played.busy_ps) / (len(played.busy_ps) * played.step_ps) if played.step_ps else 0.0

    def _played(self, schedule: str, times: Sequence[_search.StageTimes]) -> _search.PlayedSchedule:
        return self.layout.played(self.hardware, schedule, times, self.candidate.micro_batches)


def _never(first: int, end: int, in_flight: int) -> StageResult:  # of what is known
    raise AssertionError
