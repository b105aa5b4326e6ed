"""From what searches found to the plan whose step, played event by event, takes the least time per sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from osdp import _search
from osdp.planning.rehearsal import rehearsal
from osdp.planning.rivals import RIVALS, Rival, job_at, rival_job

if TYPE_CHECKING:
    from osdp.planning.search_job import SearchJob

# Note [Which objective is proven]
# The objective is additive so that its optimum can be proven; a step's critical path is not additive. Where
# communication is all hidden behind computation, a second of it costs nothing, and where computation is hidden behind
# communication, computation does. So a few objectives are searched that take a second of communication for these shares
# of what it shows on the machine (Note [Rivals]). Their plans are played, and the fastest are polished on the simulator
# (csrc/search/heuristics/polish.hpp). The problem's objective is that of the rival which plays best; where the polished
# plan is farther from its optimum than `replay` allows, it overrates communication, and the next smaller share is taken
# by which the plan is near enough. That objective is searched to the end: it is what the certificate is about. How much
# worse the plan's objective is than the optimum is the certificate's gap.
COARSE_GAP = 0.003  # at which rivals' searches end
COARSE_WORK = 50_000_000  # steps, for each of them
BESIDE = 2  # runners-up of each that are played
POLISHED = 6  # plans that are polished
PLAYED_OPERATORS = 60_000  # bounds the polishing: operators of all steps that it plays
PLAYS = (24, 1200)  # at least, and at most
OVERTIME = 0.05  # of the job's time, for the polishing where the searches took all

Found = Mapping[str, Any]


def best_by_playing(
    job: SearchJob, limit: int, batches: Sequence[tuple[int, int]], find_smallest: bool = False
) -> tuple[SearchJob, Found]:
    """The job whose objective was searched to the end, and the plan. Where nothing fits, what `job` says of that.

    No plan is taken whose objective, per sample, is worse by more than the share `searched.replay` than the best. With
    the paper's cost model nothing is played: it has no overlap.
    """
    if job.cost != "osdp" or not job.searched.replay or job.ranks == 1:
        return job, job.run(limit, batches, find_smallest)
    seeds: list[_Seed] = []
    interrupted = False
    for rival in RIVALS:
        searched = rival_job(job, rival)
        if searched is None:
            continue
        found = searched.run(round(limit * rival.of_limit), batches, gap=COARSE_GAP, work=COARSE_WORK)
        if found["feasible"]:
            seeds += _seeds(job, rival, found, limit, batches)
        elif not seeds:
            return job, job.run(limit, batches, find_smallest)
        interrupted = found["interrupted"]
        if interrupted or job.left_s() <= 0:
            break
    seeds.sort(key=lambda seed: seed.played)
    exposed, plans = seeds[0].rival.exposed, [seed.plan for seed in seeds[:POLISHED]]
    found = {**plans[0], "optimal": False}
    if not interrupted and job.left_s() > -OVERTIME * job.limit_s():
        player = _player(job_at(job, exposed), limit, batches)
        most = PLAYED_OPERATORS // len(job.description.operators)
        plays = min(max(most, PLAYS[0]), PLAYS[1])
        plans.insert(0, _search.polish(player, [_decisions(plan) for plan in plans], plays))
        exposed = _nearest(job, seeds, plans[0], limit, batches)
    proven = job_at(job, exposed)
    player = _player(proven, limit, batches)
    if not interrupted and (complete := proven.run(limit, batches))["feasible"]:
        found = complete
    elif exposed != seeds[0].rival.exposed:
        step = player.objective_ps(*_decisions(found))
        found = {**found, "step_ps": step, "lower_bound_s_per_sample": 0.0}
    return proven, _first_within(job.searched.replay, player, found, plans)


@dataclass(frozen=True)
class _Seed:
    rival: Rival
    plan: Found
    played: Fraction  # ps per sample


def _seeds(
    job: SearchJob, rival: Rival, found: Found, limit: int, batches: Sequence[tuple[int, int]]
) -> Iterator[_Seed]:
    """The plans that a rival found, as plans of `job` with the rival's weight of communication."""
    player = _player(job_at(job, rival.exposed), limit, batches)
    for plan in ({}, *found["runners_up"][:BESIDE]):
        plan = {**found, **plan}
        decisions = _decisions(plan)
        plan["step_ps"] = player.objective_ps(*decisions)
        plan["peak_bytes"] = player.peak_bytes(*decisions)
        if not rival.whole_problem():
            plan["lower_bound_s_per_sample"] = 0.0
        if plan["peak_bytes"] <= limit:
            yield _Seed(rival, plan, _per_sample(plan, player.step_ps(*decisions)))


def _nearest(
    job: SearchJob, seeds: Sequence[_Seed], plan: Found, limit: int, batches: Sequence[tuple[int, int]]
) -> float:
    """The weight of communication of the first seed, or the next smaller one by which `plan` is near enough to the best."""
    known: dict[float, Fraction] = {}
    for seed in seeds:
        objective = _per_sample(seed.plan, seed.plan["step_ps"])
        known[seed.rival.exposed] = min(objective, known.get(seed.rival.exposed, objective))
    first = seeds[0].rival.exposed
    for exposed in sorted((e for e in known if e <= first), reverse=True):
        step = _player(job_at(job, exposed), limit, batches).objective_ps(*_decisions(plan))
        if _per_sample(plan, step) <= known[exposed] * Fraction(1 + job.searched.replay):
            return exposed
    return first


def _first_within(replay: float, player: _search.Rehearsal, found: Found, plans: Sequence[Found]) -> Found:
    """The fastest, played, of `plans` whose objective is near enough to that of `found`."""
    least = _per_sample(found, found["step_ps"])
    best, best_time = found, _per_sample(found, player.step_ps(*_decisions(found)))
    for plan in plans:
        step = player.objective_ps(*_decisions(plan))
        objective = _per_sample(plan, step)
        time = _per_sample(plan, player.step_ps(*_decisions(plan)))
        if time < best_time and objective <= least * Fraction(1 + replay):
            same = found["optimal"] and objective == least
            best, best_time = (
                {**found, **plan, "step_ps": step, "optimal": same, "proven": found["optimal"]},
                time,
            )
    return best


def _player(job: SearchJob, limit: int, batches: Sequence[tuple[int, int]]) -> _search.Rehearsal:
    return rehearsal(
        job.description,
        job.machine,
        job.model,
        job.request(limit, batches),
        precision=job.precision,
        small_unit_bytes=job.searched.small_unit_bytes,
        prefetch=job.searched.prefetch,
        separate_reductions=job.separate_reductions,
    )


def _decisions(plan: Found) -> tuple[tuple[int, int], list[int], list[int]]:
    return (plan["batch_size"], plan["accumulation"]), plan["choices"], plan["blocks"]


def _per_sample(plan: Found, step_ps: int) -> Fraction:
    return Fraction(step_ps, plan["batch_size"] * plan["accumulation"])
