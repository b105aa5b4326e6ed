"""Random-restart local search for the plan whose played step is the fastest, under a limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.planning.core_inputs import signature
from osdp.planning.search_space import PREFETCHES

Candidate = tuple[str, int, int, str]  # mode, granularity, sharded slices, split
MARGIN = 100  # a plan leaves one part in so many of the limit free, as osdp.search's do
STALE = 150  # plays without a faster plan, after which it begins elsewhere
REPAIRS = 40


@dataclass(frozen=True)
class Point:
    """A plan: size per rank and micro-batches, candidates by operator, recomputation by block."""

    batch: tuple[int, int]
    choices: tuple[int, ...]
    blocks: tuple[str, ...]
    prefetch: int = 1


def as_candidate(choice: _search.Choice) -> Candidate:
    return choice.mode, choice.granularity, choice.sharded_slices, choice.split


@dataclass
class Playground:
    """One problem: its plans, played and weighed."""

    description: ModelDescription
    planner: _search.Planner
    batches: Sequence[tuple[int, int]]
    ways: Sequence[str]
    limit: int
    plays: int = 0
    known: dict[Point, float] = field(default_factory=dict)
    peaks: dict[Point, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lists: dict[object, list[Candidate]] = {}
        self.candidates: list[list[Candidate]] = []
        self.kinds: list[list[int]] = []
        kind_of: dict[object, int] = {}
        for i, o in enumerate(self.description.operators):
            key = signature(o)
            if key not in lists:
                way = self.ways[0] if o.block else "none"
                found = _search.candidates(self.planner.model, self.planner.request(), i, way)
                lists[key] = [as_candidate(c.choice) for c in found]
            self.candidates.append(lists[key])
            if lists[key]:
                if key not in kind_of:
                    kind_of[key] = len(self.kinds)
                    self.kinds.append([])
                self.kinds[kind_of[key]].append(i)
        self.plays_of = _search.IndexedPlans(self.planner, self.limit)
        self.open = [i for i, c in enumerate(self.candidates) if len(c) > 1]

    def point(
        self,
        batch: tuple[int, int],
        choices: Sequence[Candidate | None],
        blocks: Sequence[str],
        prefetch: int,
    ) -> Point | None:
        """None where it is none of this problem's plans."""
        picked = []
        for list_, wanted in zip(self.candidates, choices, strict=True):
            if list_ and wanted not in list_:
                return None
            picked.append(list_.index(wanted) if list_ and wanted else -1)
        return Point(batch, tuple(picked), tuple(blocks), prefetch)

    def fits(self, p: Point) -> bool:
        """Whether what its own step can hold keeps the limit."""
        if p not in self.peaks:
            self.peaks[p] = self.plays_of.largest_peak_bytes(*_given(p))
        return self.peaks[p] <= self.limit - self.limit // MARGIN

    def per_sample_ps(self, p: Point) -> float:
        if p not in self.known:
            self.plays += 1
            step = self.plays_of.step_ps(*_given(p))
            self.known[p] = step / (p.batch[0] * p.batch[1])
        return self.known[p]


def _given(p: Point) -> tuple[_search.Batch, list[int], list[str], int]:
    return _search.Batch(*p.batch), list(p.choices), list(p.blocks), p.prefetch


def climb(
    ground: Playground, seeds: Sequence[Point], dice: random.Random, go_on: Callable[[], bool]
) -> tuple[Point, float] | None:
    """The fastest plan that it comes to, and its picoseconds per sample; `seeds` fit."""
    best: tuple[Point, float] | None = None
    ranked = sorted(seeds, key=ground.per_sample_ps)
    starts = 0
    while go_on():
        here = ranked[starts] if starts < min(3, len(ranked)) else _start(ground, ranked, dice)
        starts += 1
        if here is None:
            if starts > 1000:
                break
            continue
        time = ground.per_sample_ps(here)
        stale = 0
        while stale < STALE and go_on():
            stale += 1
            there = _repaired(ground, _moved(ground, here, dice), dice)
            if there is None or (there in ground.known and ground.known[there] >= time):
                continue
            new = ground.per_sample_ps(there)
            if new < time:
                stale = 0
            if new <= time:
                here, time = there, new
        if best is None or time < best[1]:
            best = here, time
    return best


def _start(ground: Playground, ranked: Sequence[Point], dice: random.Random) -> Point | None:
    """A plan far from where it was: of a seed, a few kinds of operators and blocks changed."""
    if ranked and dice.random() < 0.7:
        p: Point | None = dice.choice(ranked)
        for _ in range(dice.randint(2, 6)):
            p = p and _repaired(ground, _moved(ground, p, dice), dice)
        return p
    choices = [-1 if not c else 0 for c in ground.candidates]
    for kind in ground.kinds:
        wanted = dice.randrange(len(ground.candidates[kind[0]]))
        for i in kind:
            choices[i] = wanted
    way = dice.choice(list(ground.ways))
    blocks = tuple(way for _ in ground.description.blocks)
    return _repaired(ground, Point(dice.choice(list(ground.batches)), tuple(choices), blocks), dice)


def _moved(ground: Playground, p: Point, dice: random.Random) -> Point:
    what = dice.random()
    choices, blocks, batch, prefetch = list(p.choices), list(p.blocks), p.batch, p.prefetch
    if what < 0.35 and ground.open:
        i = dice.choice(ground.open)
        choices[i] = dice.randrange(len(ground.candidates[i]))
    elif what < 0.65 and ground.open:
        kind = dice.choice([k for k in ground.kinds if len(ground.candidates[k[0]]) > 1])
        low, high = _range(len(kind), dice)
        wanted = dice.randrange(len(ground.candidates[kind[0]]))
        for i in kind[low:high]:
            choices[i] = wanted
    elif what < 0.9 and blocks and len(ground.ways) > 1:
        low, high = _range(len(blocks), dice)
        blocks[low:high] = [dice.choice(list(ground.ways))] * (high - low)
    elif what < 0.93:
        prefetch = dice.choice(PREFETCHES)
    elif len(ground.batches) > 1:
        batch = dice.choice(list(ground.batches))
    elif ground.open:  # two operators change places
        i, j = dice.choice(ground.open), dice.choice(ground.open)
        if ground.candidates[i] == ground.candidates[j]:
            choices[i], choices[j] = choices[j], choices[i]
    return Point(batch, tuple(choices), tuple(blocks), prefetch)


def _range(length: int, dice: random.Random) -> tuple[int, int]:
    """All of it, one, or what lies between."""
    kind = dice.random()
    if kind < 0.3:
        return 0, length
    low = dice.randrange(length)
    return (low, low + 1) if kind < 0.6 else (low, dice.randint(low + 1, length))


def _repaired(ground: Playground, p: Point, dice: random.Random) -> Point | None:
    """Random changes until it fits; None where it still does not."""
    for _ in range(REPAIRS):
        if ground.fits(p):
            return p
        p = _moved(ground, p, dice)
    return None
