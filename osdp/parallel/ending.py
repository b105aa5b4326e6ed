"""How all stages of a pipeline end when one rank does.

Note [The end of a pipeline]
A rank that waits for another stage waits in torch's send or receive, of which the heartbeat of a stage's ranks knows
nothing. torch raises there when the connection ends: because the rank died, or because it raised and its process ended,
stage by stage. Then a rank turns to the lane of all ranks, whose heartbeat names the one that is dead, and its stage.
The pipeline cannot be used again: half of what was sent has arrived.
"""

from __future__ import annotations

import contextlib

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.errors import RankError
from osdp.plan.parallel_plan import ParallelPlan
from osdp.ranks.rank_group import Together


def end_of_pipeline(plan: ParallelPlan, stage: int, mesh: DeviceMesh, error: Exception) -> Exception:
    """The error that this rank raises."""
    with contextlib.suppress(Exception):
        mesh["pp"].get_group().abort()  # of NCCL; gloo has none, and a connection ends with the process
    here = f"This rank has stage {stage} of {len(plan.stages)}; {_ranks(plan)}."
    cause = _first(error)
    if not _is_connection(cause) and not isinstance(cause, RankError):
        if here not in getattr(error, "__notes__", ()):
            error.add_note(here)
        return error  # others wait for this rank: its process has to end, or to go on, before they can tell anything
    try:
        Together(None, "a pipeline's step").all(None)
    except RankError as death:
        return RankError(f"{death} {here}")
    return RankError(f"the connections between the pipeline's stages ended: {cause} {here}")


def _first(error: BaseException) -> BaseException:
    """What torch's stage or schedule wrapped in its own errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_connection(cause: BaseException) -> bool:
    return isinstance(cause, (dist.DistBackendError, dist.DistNetworkError)) or any(
        word in str(cause) for word in ("gloo/transport", "Connection", "aborted", "Timed out")
    )


def _ranks(plan: ParallelPlan) -> str:
    size = plan.data_parallel * plan.tensor_parallel
    return ", ".join(
        f"stage {i} is on ranks {i * size} to {i * size + size - 1}" for i in range(len(plan.stages))
    )
