"""From what searches found to the plan whose step, played event by event, takes the least time per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from osdp import _search
from osdp.planning.rehearsal import rehearsal

if TYPE_CHECKING:
    from osdp.planning.search_job import SearchJob

# Note [Which objective is proven]
# The objective is additive so that its optimum can be proven; a step's critical path is not additive. Where
# communication is all hidden behind computation, a second of it costs nothing, and where computation is hidden behind
# communication, computation does. So a few objectives are searched that take a second of communication for these shares
# of what it shows on the machine, and their plans are played; the share of the plan that plays best is the problem's.
# Its objective is searched to the end: that is what the certificate is about. The plans found so far are then polished
# on the simulator (csrc/search/heuristics/polish.hpp), and the fastest is returned. How much worse its objective is than the
# optimum is the certificate's gap.
# Times the hardware's share, and times the limit: plans that leave room are polished, too.
OBJECTIVES = (
    (1.0, 1.0),
    (0.3, 1.0),
    (0.1, 1.0),
    (0.03, 1.0),
    (3.0, 1.0),
    (30.0, 1.0),
    (1.0, 0.9),
    (1.0, 0.75),
)
COARSE_GAP = 0.003  # at which these searches end
COARSE_WORK = 50_000_000  # steps, for each of them
BESIDE = 2  # runners-up of each that are played
POLISHED = 6  # plans that are polished
PLAYED_OPERATORS = 40_000  # bounds the polishing: operators of all steps that it plays
FEWEST_PLAYS = 24
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
    player = _player(job, limit)
    seeds: list[tuple[SearchJob, Found]] = []
    found: dict[str, Any] = {}
    for times, of_limit in OBJECTIVES:
        rival = job if times == 1.0 else job.at((job.searched.exposed or 1.0) * times)
        found = rival.run(
            round(limit * of_limit),
            batches,
            gap=COARSE_GAP,
            work=COARSE_WORK,
        )
        if found["feasible"]:
            if of_limit < 1:  # it says nothing of what the limit allows
                found["lower_bound_s_per_sample"] = 0.0
            seeds += [(rival, {**found, **plan}) for plan in ({}, *found["runners_up"][:BESIDE])]
        elif not seeds:
            return job, job.run(limit, batches, find_smallest)
        if found["interrupted"] or job.left_s() <= 0:
            break
    played = [(_per_sample(plan, player.step_ps(*_decisions(plan))), n) for n, (_, plan) in enumerate(seeds)]
    near = [seeds[n] for _, n in sorted(played)[:POLISHED]]
    proven, plans = near[0][0], [plan for _, plan in near]
    interrupted = found["interrupted"]
    found = {**plans[0], "optimal": False}
    if not interrupted and (complete := proven.run(limit, batches))["feasible"]:
        found = complete
        plans.append(found)
    player = _player(proven, limit)
    if not interrupted and job.left_s() > -OVERTIME * job.limit_s():
        plays = max(FEWEST_PLAYS, PLAYED_OPERATORS // len(job.description.operators))
        plans.insert(0, _search.polish(player, [_decisions(plan) for plan in plans], plays))
    return proven, _first_within(job.searched.replay, player, found, plans)


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


def _player(job: SearchJob, limit: int) -> _search.Rehearsal:
    return rehearsal(
        job.description,
        job.machine,
        job.model,
        job.request(limit),
        precision=job.precision,
        small_unit_bytes=job.searched.small_unit_bytes,
        prefetch=job.searched.prefetch,
        separate_reductions=job.separate_reductions,
    )


def _decisions(plan: Found) -> tuple[tuple[int, int], list[int], list[int]]:
    return (plan["batch_size"], plan["accumulation"]), plan["choices"], plan["blocks"]


def _per_sample(plan: Found, step_ps: int) -> Fraction:
    return Fraction(step_ps, plan["batch_size"] * plan["accumulation"])
