"""Which ranks share a host."""

from __future__ import annotations

import os
import socket

from torch import distributed as dist

from osdp import _C
from osdp.errors import DisagreementError, InvalidProblemError
from osdp.ranks.rank_group import Together, first_unlike

# Environment variable that replaces the comparison of hosts: so many consecutive ranks of the job share a host. Of a
# model's ranks, beside tensor and pipeline parallelism, fewer do.
RANKS_PER_HOST = "OSDP_RANKS_PER_HOST"


def host_of_each(together: Together) -> list[tuple[str, str]]:
    """Of each rank its host: a name, and an identity that distinguishes hosts of the same name (machine, boot, network
    namespace). Collective.

    Raises, on all ranks, DisagreementError if OSDP_RANKS_PER_HOST differs between them, and InvalidProblemError if it is not
    a positive integer.
    """
    here = os.environ.get(RANKS_PER_HOST, "").strip(), (socket.gethostname(), _C.host_identity())
    answers = together.all(here)
    told = answers[0][0]
    if other := first_unlike([theirs for theirs, _ in answers]):
        raise DisagreementError(
            f"ranks were given different hosts: {RANKS_PER_HOST} is {answers[other][0]!r} on {together.name(other)}, "
            f"{told!r} on {together.name(0)}"
        )
    if not told:
        return [host for _, host in answers]
    if not told.isdigit() or int(told) < 1:
        raise InvalidProblemError(f"{RANKS_PER_HOST} must be a positive integer, got {told!r}")
    ranks = (
        range(together.world_size) if together.group is None else dist.get_process_group_ranks(together.group)
    )
    return [(f"host {rank // int(told)}", "") for rank in ranks]
