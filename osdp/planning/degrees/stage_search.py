"""The search for a stage's plan: equal stages are searched once, whatever their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from osdp import _search
from osdp.errors import InfeasibleError
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan
from osdp.plan.searched import Stage
from osdp.planning.degrees.candidates import Candidate, Sharing
from osdp.planning.degrees.schedule_memory import schedule_bytes
from osdp.planning.plan_builder import plan_of
from osdp.planning.search_problem import SearchProblem

_LEAST = ("none", "regather")


@dataclass(frozen=True)
class StageResult:
    """A stage under one plan: what its passes take, and the most that it holds. `fits` is false of the least that it could
    hold, where nothing fits."""

    times: _search.StageTimes
    peak_bytes: int
    plan: _search.Plan
    what: str  # in words: "NO_SHARD", "FULL_SHARD, recomputed", "searched"
    fits: bool = True

    def step_ps(self, micro_batches: int) -> int:
        """Of the stage alone: it never waits."""
        t, m = self.times, micro_batches
        passes = t.first_forward_ps + (m - 1) * (t.forward_ps + t.backward_ps) + t.last_backward_ps
        return passes + t.optimizer_ps


@dataclass(frozen=True)
class Effort:
    """Where the search of a stage ends: at a gap, and after so many operators in steps that local search plays. `modes`: its
    plan is the best that has one of these for all operators, which a whole pipeline may like better (Note [Alone]).
    `find_smallest`: how much is held at least is found where nothing fits, which takes longer than to prove that."""

    gap: float
    played_operators: int
    modes: tuple[str, ...] = ()
    find_smallest: bool = True


QUICK = Effort(gap=0.1, played_operators=4_000)


def possible(modes: Sequence[str], hosts: int, ranks: int) -> tuple[str, ...]:
    """Some modes need several of a stage's `ranks` on each of several hosts."""
    inside = 1 < hosts < ranks
    return tuple(m for m in modes if inside or not _search.traits(m).reduced_between)


class StageSearches:
    """The stages of a candidate's chain on `machine`, that of one data-parallel group over `hosts` hosts. `whole`: the
    problem of the whole model on all ranks, whose other arguments hold for each stage."""

    def __init__(
        self,
        candidate: Candidate,
        sharing: Sharing,
        machine: Hardware,
        hosts: int,
        whole: SearchProblem,
        limit_bytes: int,
    ) -> None:
        self.chain, self.hardware, self.hosts = sharing.chain, machine, hosts
        self.whole, self.limit_bytes = whole, limit_bytes
        self.batch, self.micro_batches = candidate.batch, candidate.micro_batches
        self.degrees, self.sharing = candidate.degrees, sharing
        self._content = sharing.contents(self.batch)
        self._uniform: dict[object, list[UniformPlan]] = {}
        self._answers: dict[object, _search.Answer] = {}
        self._problems: dict[object, SearchProblem] = {}

    def key(self, first: int, end: int, in_flight: int) -> object:
        """Equal for stages that differ in their names only."""
        last = end == len(self._content)
        after = 0 if last else self.chain.links[end].boundary_bytes_per_sample
        held = sum(b.bytes for b in self.chain.kept_buffers(first, end))
        return (tuple(self._content[first:end]), first == 0, last, after, in_flight, held)

    def possible(self, modes: Sequence[str]) -> tuple[str, ...]:
        return possible(modes, self.hosts, self.degrees.data)

    def problem(self, first: int, end: int, in_flight: int, index: int = 0) -> SearchProblem:
        description = self.chain.stage(first, end)
        names = {o.name for o in description.operators}
        stage = Stage(
            index=index,
            stages=self.degrees.pipeline,
            in_flight=in_flight,
            micro_batches=self.micro_batches,
            tensor_parallel=self.degrees.tensor,
            collectives={
                name: c for name, c in self.sharing.collectives(self.batch).items() if name in names
            },
            held_bytes=schedule_bytes(self.chain, first, end, self.batch, self.micro_batches),
        )
        own = dataclasses.replace(
            self.whole, description=description, hardware=self.hardware, ranks=self.degrees.data
        )
        problem = own.changed(
            modes=self.possible(self.whole.searched.modes),
            batch_size=self.batch,
            global_batch_size=self.batch * self.micro_batches * self.degrees.data,
            hosts=self.hosts,
            stage=stage,
        )
        # Its planner is a part of the chain's, instead of made anew, unless it has several parts of one operator, or what is
        # always whole may be another part's.
        parts = sum(len(link.operators) for link in self.chain.links[first:end])
        if parts == len(description.operators) and not (self.chain.divided and self.whole.searched.whole):
            problem.__dict__["planner"] = problem.planner_of(*self._part(first, end, problem))
        return problem

    def _part(self, first: int, end: int, problem: SearchProblem) -> tuple[_search.Model, _search.Manner]:
        chosen = sorted(i for link in self.chain.links[first:end] for i in link.operators)
        _, held, always = problem.around_operators()
        return (
            _search.part_of_model(self.sharing.model(self.batch), chosen, held, always),
            _search.part_of_manner(self.sharing.manner(problem), chosen),
        )

    def uniform(
        self, first: int, end: int, in_flight: int, modes: Sequence[str], ways: Sequence[str]
    ) -> StageResult:
        """The fastest plan of one mode and one recomputation that fits; if none does, the one that holds least."""
        most = most_bytes(self.limit_bytes)
        plans = [(p, p.peak_bytes(in_flight)) for p in self._uniform_plans(first, end, modes, ways)]
        fitting = [p.result(peak, True) for p, peak in plans if peak <= most]
        if fitting:
            return min(fitting, key=lambda r: (r.step_ps(self.micro_batches), r.peak_bytes))
        plan, peak = min(plans, key=lambda p: p[1])
        return plan.result(peak, False)

    def _uniform_plans(
        self, first: int, end: int, modes: Sequence[str], ways: Sequence[str]
    ) -> list[UniformPlan]:
        key = self.key(first, end, 1)
        found = []
        for mode in self.possible(modes) if self.degrees.data > 1 else ("NO_SHARD",):
            for way in ways:
                at = (key, mode, way)
                if at not in self._uniform:
                    problem = self._problem_of(first, end)
                    batch = _search.Batch(self.batch, self.micro_batches)
                    self._uniform[at] = uniform_plans(problem, mode, way, batch)
                found.extend(self._uniform[at])
        return found

    def _problem_of(self, first: int, end: int) -> SearchProblem:
        key = self.key(first, end, 1)
        if key not in self._problems:
            self._problems[key] = self.problem(first, end, 1)
        return self._problems[key]

    def searched(self, first: int, end: int, in_flight: int, effort: Effort) -> StageResult:
        """The best plan that the search finds, uniform ones among them; where there is none, the one that holds least."""
        answer = self._answer(first, end, in_flight, effort)
        if not answer.feasible:
            least = self.uniform(first, end, in_flight, ("FULL_SHARD",), _LEAST)
            return dataclasses.replace(
                least, peak_bytes=max(answer.smallest_limit_bytes, self.limit_bytes + 1), fits=False
            )
        times = times_of(answer.played, self.micro_batches)
        return StageResult(times, answer.peak_bytes, answer.plan, "searched")

    def _answer(self, first: int, end: int, in_flight: int, effort: Effort) -> _search.Answer:
        key = (self.key(first, end, in_flight), effort)
        if key not in self._answers:
            problem = self.problem(first, end, in_flight)
            wish = problem.wish(self.limit_bytes, gap=max(effort.gap, problem.searched.gap))
            wish.played_operators = effort.played_operators
            wish.find_smallest = effort.find_smallest
            answer = problem.planner.search(wish)
            modes = effort.modes or problem.searched.modes
            best = self.uniform(first, end, in_flight, modes, problem.searched.checkpoint)
            slower = not answer.feasible or answer.played.step_ps > best.step_ps(self.micro_batches)
            if best.fits and (slower or effort.modes):
                answer = _search.Answer(
                    plan=best.plan,
                    peak_bytes=best.peak_bytes,
                    limit_bytes=self.limit_bytes,
                    played=problem.planner.play(best.plan),
                    proof=answer.proof,
                )
            self._answers[key] = answer
        return self._answers[key]

    def plan(self, first: int, end: int, in_flight: int, index: int, effort: Effort) -> Plan:
        """The plan that `searched` found, with this stage's names. Raises InfeasibleError if there is none."""
        answer = self._answer(first, end, in_flight, effort)
        if not answer.feasible:
            raise InfeasibleError(f"stage {index} has no plan", answer.smallest_limit_bytes, None)
        return plan_of(self.problem(first, end, in_flight, index), answer)


@dataclass(frozen=True)
class UniformPlan:
    """A stage's plan of one mode and one recomputation; `further_bytes`: what each further micro-batch in flight holds."""

    problem: SearchProblem
    plan: _search.Plan
    what: str
    further_bytes: int

    def peak_bytes(self, in_flight: int) -> int:
        return self._peak_bytes + (in_flight - 1) * self.further_bytes

    def result(self, peak_bytes: int, fits: bool) -> StageResult:
        return StageResult(self._times, peak_bytes, self.plan, self.what, fits)

    @cached_property
    def _peak_bytes(self) -> int:
        return self.problem.planner.largest_peak(self.plan)

    @cached_property
    def _times(self) -> _search.StageTimes:  # asked for only if it fits, mostly
        return times_of(self.problem.planner.play(self.plan), self.plan.batch.accumulation)


def uniform_plans(problem: SearchProblem, mode: str, way: str, batch: _search.Batch) -> list[UniformPlan]:
    """That gathers ahead as far as two units, and that does not."""
    d = problem.description
    further = batch.size * d.output_bytes_per_sample  # inputs of all are held throughout
    for o in d.operators:
        if o.block is None or way == "none":
            further += batch.size * o.saved_bytes_per_sample + o.saved_bytes_fixed
    if way != "none":
        further += batch.size * sum(b.input_bytes_per_sample for b in d.blocks)
    choices = [_search.Choice(mode, 1, 0 if mode == "NO_SHARD" else 1)] * len(d.operators)
    words = mode + (", recomputed" if way != "none" and d.blocks else "")
    ahead = (0,) if mode == "NO_SHARD" or problem.ranks == 1 else (0, 1)
    plans = [_search.Plan(batch, choices, [way] * len(d.blocks), n) for n in ahead]
    return [UniformPlan(problem, plan, words, further) for plan in plans]


def most_bytes(limit: int) -> int:
    """What a plan's largest peak may take of a limit: Note [What fits] in csrc/search/planner/peak_limit.hpp."""
    return limit - limit // 100


def times_of(played: _search.PlayedStep, micro_batches: int) -> _search.StageTimes:
    """What the passes of the stage's micro-batches take, from the first, one between, and the last."""
    passes = played.passes_ps
    middle = 1 if micro_batches > 2 else 0
    return _search.StageTimes(
        first_forward_ps=passes[0],
        forward_ps=passes[2] if micro_batches > 1 else passes[0],
        backward_ps=passes[1 + 2 * middle],
        last_backward_ps=passes[-1],
        optimizer_ps=played.optimizer_ps,
        backward_tail_ps=played.tails_ps[middle],
        last_backward_tail_ps=played.tails_ps[-1],
    )
