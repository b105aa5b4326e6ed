"""simulate: one training step of a plan, simulated event by event by csrc/search/simulate."""

from __future__ import annotations

import os

from osdp import _search
from osdp.errors import InvalidProblemError, PlanMismatchError
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import MODES
from osdp.plan.plan import Plan
from osdp.plan.searched import Searched
from osdp.plan.timeline import Timeline, TimelineEvent
from osdp.planning.arguments import machine_of
from osdp.planning.core_choices import core_plan
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import check_host_memory

PS = 1e-12


def simulate(
    plan: Plan,
    hardware: Hardware | str | os.PathLike[str] | None = None,
    world_size: int | None = None,
    hosts: int | None = None,
) -> Timeline:
    """The timeline of one step: see `Plan.simulate`."""
    problem, units = _problem(plan, hardware, world_size, hosts)
    try:
        timeline = problem.planner.timeline(core_plan(plan), units)
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
    played = timeline.step
    return Timeline(
        step_time_s=played.step_ps * PS,
        compute_s=(played.only_computing_ps + played.both_ps) * PS,
        communication_s=(played.only_communicating_ps + played.both_ps) * PS,
        overlap_s=played.both_ps * PS,
        optimizer_s=played.optimizer_ps * PS,
        peak_memory_bytes=played.peak_bytes,
        events=tuple(
            TimelineEvent(e.resource, e.action, e.phase, e.name, e.begin_ps * PS, e.end_ps * PS)
            for e in timeline.events
        ),
        memory=tuple((point.time_ps * PS, point.bytes) for point in played.memory),
        largest_peak_bytes=timeline.largest_peak_bytes,
        machine=problem.hardware.label,
    )


def _problem(
    plan: Plan,
    hardware: Hardware | str | os.PathLike[str] | None,
    world_size: int | None,
    hosts: int | None,
) -> tuple[SearchProblem, list[list[int]]]:
    machine = machine_of(hardware) if hardware is not None else plan.hardware
    ranks = world_size or plan.world_size
    if machine is None or ranks is None:
        raise PlanMismatchError(
            "the plan does not state its hardware and number of ranks: pass hardware= and "
            "world_size= to simulate"
        )
    check_host_memory(machine, (choice.mode for choice in plan.choices.values()))
    searched = Searched(
        modes=MODES,
        granularity=(),
        checkpoint=("none",),
        batch_size=plan.searched.batch_size if plan.searched is not None else plan.batch_size,
        hosts=hosts or (plan.searched.hosts if plan.searched is not None else 1),
        prefetch=plan.prefetch,
        stage=plan.searched.stage if plan.searched is not None else None,
    )
    problem = SearchProblem(
        plan.description,
        machine,
        ranks,
        plan.optimizer,
        plan.precision,
        "osdp",
        plan.separate_reductions,
        searched,
    )
    index = {o.name: i for i, o in enumerate(plan.description.operators)}
    units = [sorted(index[name] for name in unit) for unit in plan.units]
    return problem, units
