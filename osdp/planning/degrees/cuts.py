"""Cuts: which links are which stage, so that the played step of the pipeline is short and every stage fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from osdp import _search
from osdp.planning.degrees.stage_search import StageResult

# Note [Cuts]
# A first cut balances computing: the least largest stage, found by bisection, with stages filled from the last one, which
# holds fewest micro-batches. Then a link is moved out of the slowest stage, and all boundaries between it and the one that
# gets a link, as long as that makes the played step shorter; while some stage does not fit, out of the one that holds most.
# Each try plays the whole schedule with the stages' own plans, so transfers, bubbles and the gathers of each stage decide,
# not a sum of layers.
#
# Note [Schedules of a cut]
# Each cut is played in 1F1B, which holds least, and in GPipe, which waits less for what is sent, unless that takes so long
# that sending both ways at once counts. Both compute as much, so GPipe is taken for slower where it is with the plans of
# 1F1B's stages: with more micro-batches in flight they would hold more, or be slower ones. So one more play tells, and
# mostly nothing else is to be done. With one stage both take the same time; with fewer micro-batches than stages they are
# the same, and torch calls it GPipe.
StageOf = Callable[[int, int, int], StageResult]  # (first link, end, micro-batches in flight)
StepOf = Callable[[str, Sequence[_search.StageTimes]], int]  # (schedule, times of its stages) -> ps
Sends = Callable[[int, int], int]  # (stage, first link of the next one) -> ps of a micro-batch's activations


@dataclass(frozen=True)
class CutPipeline:
    """A cut, with what each stage takes, and the step as played."""

    cuts: tuple[int, ...]  # the first link of each stage, and the number of links
    stages: tuple[StageResult, ...]
    schedule: str
    step_ps: int
    over_bytes: int  # of all stages, over the limit

    @property
    def fits(self) -> bool:
        return self.over_bytes == 0

    @property
    def peak_bytes(self) -> int:
        return max(s.peak_bytes for s in self.stages)

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better."""
        return self.over_bytes, self.step_ps


@dataclass(frozen=True)
class Pipelines:
    """The pipelines of `stages` stages over `links` links."""

    links: int
    stages: int
    schedules: Sequence[str]  # that may be chosen; the one that holds least first
    micro_batches: int
    most_bytes: int
    stage_of: StageOf
    step_of: StepOf
    sends: Sends
    _known: dict[tuple[int, int, int], StageResult] = field(default_factory=dict)

    def played(self, cuts: Sequence[int]) -> CutPipeline:
        """In the schedule that is best: Note [Schedules of a cut]."""
        best = self._played(cuts, self.schedules[0])
        for other in self.schedules[1:] if best.fits else ():
            if self._step_ps(other, best.stages, cuts) < best.step_ps:
                best = min(best, self._played(cuts, other), key=lambda c: c.rank)
        return best

    def _played(self, cuts: Sequence[int], schedule: str) -> CutPipeline:
        p, m = self.stages, self.micro_batches
        results = tuple(
            self._stage(cuts[i], cuts[i + 1], _search.most_in_flight(schedule, p, i, m)) for i in range(p)
        )
        over = sum(max(1, r.peak_bytes - self.most_bytes) for r in results if not r.fits)
        return CutPipeline(tuple(cuts), results, schedule, self._step_ps(schedule, results, cuts), over)

    def _step_ps(self, schedule: str, results: Sequence[StageResult], cuts: Sequence[int]) -> int:
        return self.step_of(schedule, self.times(results, cuts))

    def _stage(self, first: int, end: int, in_flight: int) -> StageResult:
        at = (first, end, in_flight)
        if at not in self._known:
            self._known[at] = self.stage_of(*at)
        return self._known[at]

    def times(self, results: Sequence[StageResult], cuts: Sequence[int]) -> list[_search.StageTimes]:
        """With what passes between stages: the gradients of activations are as large as these."""
        ahead = [self.sends(i, cuts[i + 1]) for i in range(self.stages - 1)]
        return with_sends([r.times for r in results], ahead)

    def improved(self, start: Sequence[int], most_rounds: int) -> CutPipeline:
        """From a cut, with links moved from the slowest stage, or from the one that is over the limit most."""
        best = self.played(start)
        for _ in range(most_rounds if self.stages > 1 else 0):
            found = min((self.played(c) for c in self._moved(best)), key=lambda c: c.rank, default=best)
            if found.rank >= best.rank:
                break
            best = found
        return best

    def _moved(self, cut: CutPipeline) -> list[tuple[int, ...]]:
        """To its neighbours, and to the stages that have most left."""

        def load(i: int) -> int:
            result = cut.stages[i]
            return result.step_ps(self.micro_batches) if cut.fits else result.peak_bytes

        order = sorted(range(self.stages), key=load)
        slowest = order[-1]
        to = {slowest - 1, slowest + 1, *order[:2]} - {slowest, -1, self.stages}
        moved = (_shifted(cut.cuts, slowest, t) for t in sorted(to))
        return [c for c in moved if all(x < y for x, y in itertools.pairwise(c))]


def with_sends(times: Sequence[_search.StageTimes], sends_ps: Sequence[int]) -> list[_search.StageTimes]:
    """`times` of stages, with what each takes to send to the next one and back to the one before."""
    return [
        _search.StageTimes(
            first_forward_ps=t.first_forward_ps,
            forward_ps=t.forward_ps,
            backward_ps=t.backward_ps,
            last_backward_ps=t.last_backward_ps,
            optimizer_ps=t.optimizer_ps,
            send_activations_ps=ahead,
            send_gradients_ps=back,
            backward_tail_ps=t.backward_tail_ps,
            last_backward_tail_ps=t.last_backward_tail_ps,
        )
        for t, ahead, back in zip(times, (*sends_ps, 0), (0, *sends_ps), strict=True)
    ]


def balanced(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """The cut whose largest stage weighs least, with earlier stages lighter. `weights`: of links, at least as many."""
    low, high = max(max(weights), sum(weights) / stages), sum(weights)
    for _ in range(50):
        middle = (low + high) / 2
        if _filled(weights, stages, middle) is None:
            low = middle
        else:
            high = middle
    cuts = _filled(weights, stages, high * (1 + 1e-9))
    assert cuts is not None
    return cuts


def _filled(weights: Sequence[float], stages: int, most: float) -> tuple[int, ...] | None:
    """Stages of at most `most`, filled from the last one; each has a link. None if that leaves some."""
    cuts, end = [len(weights)], len(weights)
    for left in range(stages - 1, -1, -1):
        first, weight = end, 0.0
        while first > left and weight + weights[first - 1] <= most:
            first -= 1
            weight += weights[first]
        if first == end:
            return None
        cuts.append(first)
        end = first
    return tuple(reversed(cuts)) if end == 0 else None


def _shifted(cuts: Sequence[int], source: int, target: int) -> tuple[int, ...]:
    """A link of `source` moves to its neighbour, one of that further on, until `target` has one more."""
    forward = target > source
    between = range(source + 1, target + 1) if forward else range(target + 1, source + 1)
    return tuple(c + ((-1 if forward else 1) if i in between else 0) for i, c in enumerate(cuts))
