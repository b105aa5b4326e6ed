"""The DeviceMesh of a sharded parameter's DTensors: over the data-parallel ranks, then over those of tensor parallelism."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from osdp.base.tensor_parallel import Layout, layout_of
from osdp.ranks.process_groups import group_of_ranks
from osdp.ranks.rank_group import Together
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.sharded_parameters import ShardedParameter

# Model -> its meshes: of hybrid parameters, and of others; by the mesh of tensor parallelism.
_meshes: WeakKeyDictionary[Sharded, dict[tuple[bool, Any], DeviceMesh]] = WeakKeyDictionary()


def mesh_of(parameter: ShardedParameter) -> DeviceMesh:
    """The mesh of the parameter's ranks, created on first use; with HYBRID_SHARD by the ranks of line and
    column. Collective then."""
    sharded, layout, made = parameter.sharded, parameter.layout, _meshes.setdefault(parameter.sharded, {})
    key = (parameter.hybrid, None)
    if key not in made:
        made[key] = _over_data(sharded, parameter.hybrid)
    if layout is None:
        return made[key]
    both = (parameter.hybrid, layout.mesh)
    if both not in made:
        made[both] = _joined(sharded, made[key], layout)
    return made[both]


def all_ranks(sharded: Sharded) -> dist.ProcessGroup:
    """The group of all ranks that hold a part of the model: with tensor parallelism more than it is sharded over.
    Collective where the group is made."""
    for index, parameter in enumerate(sharded.tree.known if sharded.tensor_parallel else ()):
        if layout_of(parameter) is not None:
            ranks = mesh_of(ShardedParameter(sharded, index)).mesh.flatten().tolist()
            return group_of_ranks(sorted(ranks))
    return sharded.group


def make_meshes(sharded: Sharded) -> None:
    """Those of parameters of tensor parallelism, so that no state dict of rows communicates for one. Called once."""
    for index, parameter in enumerate(sharded.tree.known):
        if layout_of(parameter) is not None:
            sharded.tensor_parallel = True
            mesh_of(ShardedParameter(sharded, index))


def _over_data(sharded: Sharded, hybrid: bool) -> DeviceMesh:
    given = sharded.mesh
    if given is not None and given.ndim == (2 if hybrid else 1):
        return given  # type: ignore[no-any-return]
    kind = sharded.device.type
    if not hybrid:
        return DeviceMesh.from_group(sharded.group, kind)
    grid, rank = sharded.grid, dist.get_rank(sharded.group)
    assert grid is not None
    ranks = dist.get_process_group_ranks(sharded.group)
    lines = [[ranks[r] for r in line] for line in grid.lines]
    groups = [group_of_ranks([ranks[r] for r in part]) for part in (grid.column_of(rank), grid.line_of(rank))]
    return DeviceMesh.from_group(groups, kind, lines, mesh_dim_names=("replicate", "shard"))


def _joined(sharded: Sharded, over_data: DeviceMesh, layout: Layout) -> DeviceMesh:
    """As FSDP2's: the dimensions of both meshes. Where both are of one mesh torch can say so."""
    tensor = layout.mesh
    concatenate = getattr(DeviceMesh, "_concatenate", None)  # private to torch
    if (
        concatenate is not None
        and over_data is sharded.mesh
        and over_data.mesh_dim_names
        and tensor.mesh_dim_names
    ):
        try:
            return concatenate([over_data, tensor])  # type: ignore[no-any-return]
        except RuntimeError:  # of different meshes
            pass
    # Each data-parallel rank's ranks of tensor parallelism, in the places of over_data's ranks.
    mine = tensor.mesh.flatten().tolist()
    everyones = dict(
        zip(dist.get_process_group_ranks(sharded.group), Together(sharded.group).all(mine), strict=True)
    )
    names = tuple(over_data.mesh_dim_names or ("dp",)) + tuple(tensor.mesh_dim_names or ("tp",))
    groups = [*over_data.get_all_groups(), *tensor.get_all_groups()]
    ranks = over_data.mesh
    table = torch.tensor([everyones[r] for r in ranks.flatten().tolist()], dtype=torch.int)
    table = table.view(*ranks.shape, *tensor.mesh.shape)
    return DeviceMesh.from_group(groups, sharded.device.type, table, mesh_dim_names=names)
