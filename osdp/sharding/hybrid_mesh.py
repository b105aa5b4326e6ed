"""RankGrid: which ranks together hold one copy of a HYBRID_SHARD parameter, and which hold the same part of
it.

    4 ranks on 2 hosts        a parameter of 8 rows
      line 0: ranks 0, 1        rank 0 rows 0-3, rank 1 rows 4-7
      line 1: ranks 2, 3        rank 2 rows 0-3, rank 3 rows 4-7     columns: ranks 0, 2 and ranks 1, 3

A line is usually the ranks of a host, which gather over fast links; only gradients' shards cross between lines. The grid
comes from a 2-D DeviceMesh (replicate x shard), from a pair of process groups (shard, replicate), or from the hosts that
the ranks find themselves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.errors import DisagreementError, InvalidProblemError, PlanMismatchError, ProcessGroupError
from osdp.plan.plan import Plan
from osdp.ranks.hosts import RANKS_PER_HOST, host_of_each
from osdp.ranks.process_groups import group_of_ranks
from osdp.ranks.rank_group import Together, first_unlike, ranks_by

GroupLike = dist.ProcessGroup | tuple[dist.ProcessGroup, dist.ProcessGroup] | DeviceMesh


@dataclass(frozen=True)
class RankGrid:
    """`lines`: per copy, the ranks of the model's process group that hold it, in the order of the rows they hold."""

    lines: tuple[tuple[int, ...], ...]

    def line_of(self, rank: int) -> tuple[int, ...]:
        return next(line for line in self.lines if rank in line)

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        return tuple(zip(*self.lines, strict=True))

    def column_of(self, rank: int) -> tuple[int, ...]:
        return next(column for column in self.columns if rank in column)


def model_ranks(
    process_group: GroupLike | None, device_mesh: DeviceMesh | None
) -> tuple[dist.ProcessGroup | None, RankGrid | None]:
    """The process group of all ranks of a model (None: the default one), and their grid where one was given.

    Collective if a pair of groups is given, or a mesh that does not contain all ranks. Raises
    ProcessGroupError for invalid groups and meshes.
    """
    if device_mesh is not None and process_group is not None:
        raise ProcessGroupError("pass process_group= or device_mesh=, not both")
    given = device_mesh if device_mesh is not None else process_group
    if isinstance(given, DeviceMesh):
        return _of_mesh(given)
    if isinstance(given, tuple):
        return _of_pair(given)
    return given, None


def agreed_grid(
    together: Together, plan: Plan, given: RankGrid | None, ranks_per_host: int | None
) -> RankGrid | None:
    """The grid for the operators of `plan` whose mode tells hosts apart (HYBRID_SHARD, FULL_SHARD_HPZ and others), the
    same on every rank; None if it has none. Collective.

    `given`: from the caller's mesh or groups. Otherwise each host is a line: `ranks_per_host` consecutive ranks, those of
    OSDP_RANKS_PER_HOST consecutive ranks of the job, or those with the same host name, boot and network namespace. With
    one host there is one line, which is equivalent to FULL_SHARD.

    Raises, on all ranks: DisagreementError if ranks have different arguments, ProcessGroupError if hosts have
    different numbers of ranks, PlanMismatchError if the plan was searched for a different number of hosts.
    """
    ways = ways_to_tell_hosts_apart(plan)
    if not ways:
        return None
    grid = given_or_found(together, given, ranks_per_host)
    wanted = plan.searched.hosts if plan.searched is not None else 1
    if wanted not in (1, len(grid.lines)):
        raise PlanMismatchError(
            f"the plan was searched for {wanted} hosts, but the {together.world_size} ranks run on "
            f"{len(grid.lines)}: search with hosts={len(grid.lines)}, or state which ranks share a "
            f"host with device_mesh=, ranks_per_host= or the environment variable {RANKS_PER_HOST}"
        )
    host_by_host = [rank for line in grid.lines for rank in line] == list(range(together.world_size))
    if "by_hosts" in ways and not host_by_host:
        name = next(c.mode for c in plan.choices.values() if c.traits.by_hosts)
        raise ProcessGroupError(
            f"{name} needs hosts whose ranks are consecutive; found {[list(line) for line in grid.lines]}. "
            "Number the ranks host by host, as torchrun does"
        )
    return grid


def ways_to_tell_hosts_apart(plan: Plan) -> set[str]:
    """The traits of the plan's modes that do ("inside_hosts", "by_hosts": csrc/modes.hpp). Each needs groups of its own
    beside that of all ranks."""
    ways = ("inside_hosts", "by_hosts")
    return {way for choice in plan.choices.values() for way in ways if getattr(choice.traits, way)}


def given_or_found(together: Together, given: RankGrid | None, ranks_per_host: int | None) -> RankGrid:
    """Like `agreed_grid`, without a plan."""
    answers = together.all((given, ranks_per_host))
    if other := first_unlike(answers):
        raise DisagreementError(
            f"ranks were given different hosts: {_said(*answers[other])} on {together.name(other)}, "
            f"{_said(*answers[0])} on {together.name(0)}"
        )
    if given is not None:
        return given
    if ranks_per_host is not None:
        return _consecutive(together.world_size, ranks_per_host)
    return _by_host(host_of_each(together))


def _consecutive(ranks: int, size: int) -> RankGrid:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or ranks % size:
        raise InvalidProblemError(
            f"ranks_per_host must be an integer that divides the {ranks} ranks, got {size!r}"
        )
    return RankGrid(tuple(tuple(range(i, i + size)) for i in range(0, ranks, size)))


def _by_host(hosts: Sequence[tuple[str, str]]) -> RankGrid:
    lines = ranks_by(hosts)
    if len({len(line) for line in lines}) > 1:
        counts = ", ".join(f"{hosts[line[0]][0]}: {len(line)}" for line in lines)
        raise ProcessGroupError(
            f"HYBRID_SHARD needs the same number of ranks on every host; found {counts}. Start "
            "equally many on each, or state which ranks hold a copy together with device_mesh= or "
            "ranks_per_host="
        )
    return RankGrid(lines)


def _said(given: RankGrid | None, ranks_per_host: int | None) -> str:
    if given is not None:
        return f"the lines {[list(line) for line in given.lines]}"
    return "nothing" if ranks_per_host is None else f"{ranks_per_host} ranks per host"


def _of_mesh(mesh: DeviceMesh) -> tuple[dist.ProcessGroup, RankGrid | None]:
    if mesh.ndim == 1:
        return mesh.get_group(), None
    if mesh.ndim != 2:
        raise ProcessGroupError(
            f"the device mesh has {mesh.ndim} dimensions; pass one with 1 (all ranks shard) or 2 "
            "(replicate x shard), such as mesh['replicate', 'shard']"
        )
    return _of_lines(mesh.mesh.tolist())


def _of_pair(groups: tuple[dist.ProcessGroup, ...]) -> tuple[dist.ProcessGroup, RankGrid]:
    if len(groups) != 2 or not all(
        isinstance(g, dist.ProcessGroup) and dist.get_rank(g) >= 0 for g in groups
    ):
        raise ProcessGroupError(
            "process_group is a tuple, so it must hold two process groups that this process belongs "
            "to: (the ranks it shards with, the ranks that hold the same shard)"
        )
    shard, replicate = groups
    mine = dist.get_process_group_ranks(shard), dist.get_process_group_ranks(replicate)
    # Each rank of the line sends its column: together they are the whole grid, if they are consistent.
    columns = [column for _, column in Together(shard).all(mine)]
    lines = [line for line, _ in Together(replicate).all(mine)]
    if [list(line) for line in zip(*columns, strict=False)] != lines:
        raise ProcessGroupError(
            f"the shard group {mine[0]} and the replicate group {mine[1]} do not form a grid: the "
            f"shard groups of the replicate group's ranks are {lines}, and the replicate groups of "
            f"the shard group's ranks are {columns}"
        )
    return _of_lines(lines)


def _of_lines(lines: Sequence[Sequence[int]]) -> tuple[dist.ProcessGroup, RankGrid]:
    """The process group and grid of `lines`, which are global ranks."""
    ranks = sorted(rank for line in lines for rank in line)
    if dist.get_rank() not in ranks:
        raise ProcessGroupError(
            f"this process, rank {dist.get_rank()}, is not one of the given ranks {ranks}"
        )
    group = group_of_ranks(ranks)
    place = {rank: i for i, rank in enumerate(dist.get_process_group_ranks(group))}
    return group, RankGrid(tuple(tuple(place[rank] for rank in line) for line in lines))
