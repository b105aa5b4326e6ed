"""Searches of other objectives, other limits and smaller spaces: their plans are played beside the problem's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from osdp.hardware.hardware import Collective, Hardware

if TYPE_CHECKING:
    from osdp.planning.search_job import SearchJob


@dataclass(frozen=True)
class Rival:
    """One such search."""

    exposed: float = 1.0  # weight of communication, times the hardware's
    of_limit: float = 1.0
    latency: bool = True  # False: collectives have none
    slices: bool = True
    recomputes: bool = True

    def whole_problem(self) -> bool:
        """Whether what it proves holds for all plans of the problem."""
        return self == Rival(self.exposed)


# Note [Rivals]
# The objective charges each operator for its own latency, and all communication alike. In a step neighbours share a
# latency, most where they have one mode; so plans are searched that pay none, in one piece, too. What memory a plan
# leaves, polishing uses where it shows in the played step.
RIVALS = (
    Rival(),
    Rival(0.3),
    Rival(0.1),
    Rival(0.03),
    Rival(3.0),
    Rival(30.0),
    Rival(of_limit=0.95),
    Rival(of_limit=0.9),
    Rival(of_limit=0.8),
    Rival(of_limit=0.7),
    Rival(latency=False),
    Rival(latency=False, slices=False),
    Rival(slices=False),
    Rival(recomputes=False),
)


def job_at(job: SearchJob, exposed: float) -> SearchJob:
    """`job` with that many times its weight of communication."""
    return job if exposed == 1.0 else job.at((job.searched.exposed or 1.0) * exposed)


def rival_job(job: SearchJob, rival: Rival) -> SearchJob | None:
    """None where it would be another rival's. Options keep their places in smaller spaces."""
    space, machine = job.space, job.machine
    if not rival.recomputes:
        if None not in space.recompute or len(space.recompute) == 1:
            return None
        space = replace(space, recompute=(None,))
    if not rival.slices:
        if not space.granularities:
            return None
        space = replace(space, granularities=())
    if not rival.latency:
        machine = _without_latency(machine)
    return replace(job_at(job, rival.exposed), space=space, machine=machine)


def _without_latency(machine: Hardware) -> Hardware:
    def without(c: Collective) -> Collective:
        return replace(c, alpha_s=0.0)

    return replace(
        machine,
        all_gather=without(machine.all_gather),
        reduce_scatter=without(machine.reduce_scatter),
        all_reduce=without(machine.all_reduce),
        between_hosts=None if machine.between_hosts is None else without(machine.between_hosts),
    )
