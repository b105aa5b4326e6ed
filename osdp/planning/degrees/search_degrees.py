"""The search over degrees: candidates in order of their bounds, uniform plans first, then each stage's own search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from osdp import _search
from osdp.base.byte_sizes import format_bytes, format_limits
from osdp.errors import InfeasibleError, InvalidProblemError
from osdp.plan.parallel_plan import SCHEDULES, ParallelPlan, RuledOut, StagePlan
from osdp.planning.degrees.alternatives import Alternatives
from osdp.planning.degrees.candidates import (
    LARGE,
    Candidate,
    Sharing,
    candidates_of,
    degrees_of,
    tensor_degrees,
)
from osdp.planning.degrees.cuts import CutPipeline
from osdp.planning.degrees.layout import Layout
from osdp.planning.degrees.pipelines import EVERY_MODE, EVERY_WAY, CandidatePipelines
from osdp.planning.degrees.stage_search import QUICK, Effort, possible
from osdp.planning.optimizer_states import optimizer_state
from osdp.planning.search_problem import SearchProblem

# Note [The search over degrees]
# 1. Every (tensor, pipeline, data) that divides the ranks, keeps tensor parallelism inside a host and can be cut, with every
#    micro-batch that divides a replica's share of the batch, has a bound: its slowest stage computes for so long. In the
#    order of bounds, each is played with uniform plans (one mode and one recomputation for a whole stage), until a bound is
#    above the best step so far: those behind it are ruled out, which is proven. Bounds are of every schedule.
# 2. The few best (within NEAR of the best, at most MOST_SEARCHED) have each stage searched: its operators' choices over its
#    data-parallel ranks under what its micro-batches in flight leave, with the planner's proof. Equal stages are searched
#    once. What fewer means give (Note [Alone]) is compared with these, so it is never faster than what is returned.
# 3. The best of these is improved: a boundary is moved again, and its stages' local search plays more steps.
# Degrees, micro-batches and cuts are enumerated so: a uniform plan that is NEAR slower may have been a better one's. A plan
# of each stage is proven; that of all stages is the played step of these.
NEAR, MOST_SEARCHED = 0.10, 3
PLAYED_OPERATORS = 60_000  # in the last search, over all different stages
ROUNDS = 8  # of moved boundaries


@dataclass
class Search:
    """The arguments of `osdp.search`, checked. `problem`: of the whole model on all ranks, as without degrees."""

    problem: SearchProblem
    limit_bytes: int
    tensor: int | None
    pipeline: int | None
    styles: Mapping[str, str]
    tp_plan: Mapping[str, str]
    schedule: str | None
    ruled_out: list[RuledOut] = field(default_factory=list)
    _sharings: dict[int, Sharing] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.problem.ranks

    @property
    def hosts(self) -> int:
        return self.problem.searched.hosts

    @property
    def global_batch(self) -> int:
        assert self.problem.searched.global_batch_size is not None
        return self.problem.searched.global_batch_size

    def sharing(self, tensor: int) -> Sharing:
        if tensor not in self._sharings:
            self._sharings[tensor] = Sharing(
                self.problem.description,
                self.styles,
                self.problem.hardware.inside_a_host(self.hosts),
                self.problem.precision,
                tensor,
                self.problem.searched.whole,
            )
        return self._sharings[tensor]

    def candidates(self, any_size: bool = False) -> list[Candidate]:
        """In the order of their bounds. `any_size`: with those that hold far more than the limit."""
        per_host = self.ranks // self.hosts
        found = []
        for tensor in tensor_degrees(self.tensor, self.ranks, per_host, bool(self.styles)):
            try:
                sharing = self.sharing(tensor)
            except InvalidProblemError as error:
                if self.tensor is not None:
                    raise
                self.ruled_out.append(RuledOut(tensor, 1, self.ranks // tensor, None, str(error)))
                continue
            for degrees in degrees_of(self.pipeline, tensor, self.ranks, sharing.chain.most_stages):
                layout = Layout(degrees, per_host)
                modes = self.problem.searched.modes
                if (
                    not layout.problem()
                    and degrees.data > 1
                    and not possible(modes, layout.data_hosts, degrees.data)
                ):
                    why = f"{', '.join(modes)} needs several ranks on each of several hosts, which a stage does not have"
                    self.ruled_out.append(RuledOut(tensor, degrees.pipeline, degrees.data, None, why))
                    continue
                found += candidates_of(
                    sharing,
                    degrees,
                    per_host,
                    self.global_batch,
                    self.problem.searched.batch_size,
                    None if any_size else self.limit_bytes,
                    None
                    if any(_search.traits(m).on_host for m in modes)
                    else optimizer_state(self.problem.optimizer),
                    self.ruled_out,
                )
        return sorted(found, key=lambda c: (c.bound_s, c.degrees.tensor, c.degrees.pipeline, -c.batch))

    def pipelines(self, candidate: Candidate) -> CandidatePipelines:
        return CandidatePipelines(
            candidate,
            self.sharing(candidate.degrees.tensor),
            self.problem,
            self.limit_bytes,
            self.schedules(candidate.degrees.pipeline, candidate.micro_batches),
        )

    def schedules(self, stages: int, micro_batches: int) -> tuple[str, ...]:
        """That differ: Note [Schedules of a cut]."""
        if self.schedule is not None:
            return (self.schedule,)
        if stages == 1:
            return ("1f1b",)
        return SCHEDULES if micro_batches >= stages else ("gpipe",)


def search_degrees(search: Search) -> ParallelPlan:
    """The fastest that is found. Raises InfeasibleError if no degrees fit, InvalidProblemError if none exist."""
    candidates = search.candidates()
    if not candidates:
        too_large = any(r.why.startswith(LARGE) for r in search.ruled_out)
        raise _nothing_fits(search) if too_large else _none_exist(search)
    known = [search.pipelines(c) for c in candidates]
    uniform = list(_uniform(search, known))
    fitting = sorted((u for u in uniform if u[1].fits), key=lambda u: u[1].step_ps)
    near = [u for u in fitting if u[1].step_ps <= (1 + NEAR) * fitting[0][1].step_ps][:MOST_SEARCHED]
    if not near:  # a plan of several modes may fit where none of one does
        near = sorted(uniform, key=lambda u: u[1].rank)[:MOST_SEARCHED]
    found = [(p, p.searched(cut.cuts, QUICK, ROUNDS if not cut.fits else 0), QUICK) for p, cut in near]
    alternatives = Alternatives(known, search.tensor is not None or search.pipeline is not None)
    pipelines, best, quick = min((*found, *alternatives.fastest()), key=lambda f: f[1].rank)
    if not best.fits:
        raise _nothing_fits(search)
    for other, cut, _ in found:
        if other is not pipelines:
            _rule_out(search, other, f"searched: {_step(cut)}" if cut.fits else _over(cut))
    moved = pipelines.searched(best.cuts, QUICK, 1)
    different = max(1, len({pipelines.searches.key(*c) for c in _keys(pipelines, moved)}))
    effort = Effort(search.problem.searched.gap, PLAYED_OPERATORS // different)
    last = pipelines.searched(moved.cuts, effort, 0)
    cut, effort = min(((last, effort), (moved, QUICK), (best, quick)), key=lambda f: f[0].rank)
    return _plan(search, pipelines, cut, effort, alternatives.all())


def _uniform(
    search: Search, known: list[CandidatePipelines]
) -> Iterator[tuple[CandidatePipelines, CutPipeline]]:
    best: int | None = None
    for pipelines in known:
        if best is not None and pipelines.candidate.bound_s * 1e12 >= best:
            _rule_out(search, pipelines, f"a step takes {pipelines.candidate.bound_s:.4g} s at least")
            continue
        found = pipelines.uniform(EVERY_MODE, EVERY_WAY, 0)
        if not found.fits and found.peak_bytes <= 1.3 * search.limit_bytes:
            found = pipelines.uniform(EVERY_MODE, EVERY_WAY, ROUNDS)
        near = best is None or found.step_ps <= (1 + NEAR) * best
        if found.fits and near:
            found = pipelines.uniform(EVERY_MODE, EVERY_WAY, ROUNDS, found.cuts)
        if found.fits:
            best = found.step_ps if best is None else min(best, found.step_ps)
        if not found.fits or not near:
            _rule_out(search, pipelines, _step(found) if found.fits else _over(found))
        yield pipelines, found


def _keys(pipelines: CandidatePipelines, cut: CutPipeline) -> Iterator[tuple[int, int, int]]:
    p, m = len(cut.stages), pipelines.candidate.micro_batches
    for i in range(p):
        yield cut.cuts[i], cut.cuts[i + 1], _search.most_in_flight(cut.schedule, p, i, m)


def _rule_out(search: Search, pipelines: CandidatePipelines, why: str) -> None:
    d = pipelines.candidate.degrees
    search.ruled_out.append(RuledOut(d.tensor, d.pipeline, d.data, pipelines.candidate.batch, why))


def _step(cut: CutPipeline) -> str:
    return f"its step takes {cut.step_ps * 1e-12:.4g} s"


def _over(cut: CutPipeline) -> str:
    worst = max(range(len(cut.stages)), key=lambda i: cut.stages[i].peak_bytes)
    return f"stage {worst} holds {format_bytes(cut.stages[worst].peak_bytes)}"


def _plan(
    search: Search, pipelines: CandidatePipelines, cut: CutPipeline, effort: Effort, alternatives: object
) -> ParallelPlan:
    c = pipelines.candidate
    links = pipelines.sharing.chain.links
    stages = tuple(
        StagePlan(
            tuple(link.name for link in links[first:end]),
            pipelines.searches.plan(first, end, in_flight, i, effort),
        )
        for i, (first, end, in_flight) in enumerate(_keys(pipelines, cut))
    )
    return ParallelPlan(
        description=search.problem.description,
        hardware=search.problem.hardware,
        world_size=search.ranks,
        hosts=search.hosts,
        tensor_parallel=c.degrees.tensor,
        pipeline_parallel=c.degrees.pipeline,
        data_parallel=c.degrees.data,
        tp_plan=dict(search.tp_plan),
        schedule=cut.schedule,
        global_batch_size=search.global_batch,
        micro_batch_size=c.batch,
        micro_batches=c.micro_batches,
        memory_limit_bytes=search.limit_bytes,
        stages=stages,
        step_time_s=cut.step_ps * 1e-12,
        idle_share=pipelines.idle_share(cut),
        alternatives=alternatives,  # type: ignore[arg-type]
        ruled_out=tuple(search.ruled_out),
    )


def _none_exist(search: Search) -> InvalidProblemError:
    why = "; ".join(dict.fromkeys(r.why for r in search.ruled_out)) or (
        f"tensor_parallel x pipeline_parallel does not divide the world size {search.ranks}"
    )
    return InvalidProblemError(
        f"no degrees of {search.ranks} ranks on {search.hosts} hosts are possible: {why}"
    )


def _nothing_fits(search: Search) -> InfeasibleError:
    """Names the smallest limit that is found, under which these degrees and cuts have a plan: of the candidate whose uniform
    plan holds least, in its smallest micro-batch; those that were too large to be looked at are among them."""
    # What holds least.
    modes = ("FULL_SHARD",) if "FULL_SHARD" in search.problem.searched.modes else EVERY_MODE
    smallest = {c.degrees: c for c in sorted(search.candidates(any_size=True), key=lambda c: -c.batch)}
    known = [search.pipelines(c) for c in smallest.values()]
    uniform = [(p, p.uniform(modes, EVERY_WAY, 0)) for p in known]
    near = sorted(uniform, key=lambda u: u[1].peak_bytes)[:MOST_SEARCHED]
    moved = [(p, p.uniform(modes, EVERY_WAY, ROUNDS, cut.cuts)) for p, cut in near]
    pipelines, cut = min(moved, key=lambda m: m[1].peak_bytes)
    least = min(cut, pipelines.searched(cut.cuts, QUICK, 0), key=lambda c: c.peak_bytes)  # slices hold less
    d, m = pipelines.candidate.degrees, pipelines.candidate.batch
    asked, fits = format_limits(search.limit_bytes, least.peak_bytes)
    return InfeasibleError(
        f"no degrees fit {asked}; the smallest limit found is "
        f"{fits}: tensor {d.tensor}, pipeline {d.pipeline}, data {d.data} and micro-batches of "
        f"{m}, where {_over(least)}. Give each rank more memory, or the job more ranks",
        least.peak_bytes,
    )
