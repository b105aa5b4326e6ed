"""Converts this rank's rows to a DTensor that shares their memory, and back; see Note [DTensors at the
border]."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.ranks.process_groups import group_of_ranks
from osdp.sharding.sharded_parameters import ShardedParameter

_RANK = "_osdp_rank"  # attribute of a DTensor: the rank of its rows; kept when a user saves the DTensor
_meshes: WeakKeyDictionary[object, dict[bool, DeviceMesh]] = WeakKeyDictionary()


def as_dtensor(parameter: ShardedParameter, rows: Tensor) -> Tensor:
    """A DTensor of the full shape. `rows`: this rank's rows of the parameter or of a tensor of its shape.
    Collective for a split weight."""
    from torch.distributed.tensor import DTensor

    mesh = mesh_of(parameter)
    full = torch.empty(parameter.full_shape, device="meta")
    rows = rows.detach()
    if parameter.split:
        rows = _first_rows(parameter.sharded.gather_whole(parameter.name, rows), mesh)
    shown = DTensor.from_local(
        rows, mesh, placements_of(parameter), run_check=False, shape=full.shape, stride=full.stride()
    )
    setattr(shown, _RANK, (parameter.rank, parameter.world))
    return shown


def rank_of(value: Tensor, parameter: ShardedParameter) -> tuple[int, int]:
    """Rank and number of ranks of the rows that one of our DTensors holds; by default this rank's."""
    here = (parameter.rank, parameter.world)
    found: tuple[int, int] = getattr(value, _RANK, here)
    return found


def rows_of(parameter: ShardedParameter, value: Any) -> Tensor:
    """This rank's part of a DTensor of the full shape on the parameter's mesh, in whatever placements. Collective."""
    if parameter.split or value.device_mesh != mesh_of(parameter):
        return parameter.sharded.take_local(parameter.name, value.full_tensor())
    rows: Tensor = value.redistribute(value.device_mesh, placements_of(parameter)).to_local()
    return rows


def placements_of(parameter: ShardedParameter) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    rows = Shard(parameter.dim)
    return [Replicate(), rows] if parameter.hybrid else [rows]


def mesh_of(parameter: ShardedParameter) -> DeviceMesh:
    """The mesh of the parameter's ranks, created on first use; with HYBRID_SHARD by the ranks of line and
    column."""
    sharded = parameter.sharded
    made = _meshes.setdefault(sharded, {})
    if parameter.hybrid not in made:
        kind = sharded.device.type
        if not parameter.hybrid:
            made[False] = DeviceMesh.from_group(sharded.group, kind)
        else:
            grid, rank = sharded.grid, dist.get_rank(sharded.group)
            assert grid is not None
            ranks = dist.get_process_group_ranks(sharded.group)
            lines = [[ranks[r] for r in line] for line in grid.lines]
            groups = [
                group_of_ranks([ranks[r] for r in part])
                for part in (grid.column_of(rank), grid.line_of(rank))
            ]
            made[True] = DeviceMesh.from_group(groups, kind, lines, mesh_dim_names=("replicate", "shard"))
    return made[parameter.hybrid]


def _first_rows(full: Tensor, mesh: DeviceMesh) -> Tensor:
    """This rank's rows under the placement Shard(0)."""
    chunk = -(-full.shape[0] // mesh.size())
    begin = min(chunk * mesh.get_local_rank(), full.shape[0])
    return full[begin : begin + chunk].clone()
