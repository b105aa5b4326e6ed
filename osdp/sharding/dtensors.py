"""Converts this rank's rows to a DTensor that shares their memory, and back; see Note [DTensors at the
border]."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from osdp.base.tensor_parallel import spec_of
from osdp.sharding.parameter_meshes import mesh_of
from osdp.sharding.sharded_parameters import ShardedParameter

_ROWS = "_osdp_rows"  # attribute of a DTensor: it wraps a tensor of ours itself
_RANK = "_osdp_rank"  # attribute of a DTensor: the rank of its rows; kept when a user saves the DTensor


def as_dtensor(parameter: ShardedParameter, rows: Tensor) -> Tensor:
    """A DTensor of the full shape. `rows`: this rank's rows of the parameter or of a tensor of its shape.
    Collective for a split weight, and where a mesh is made: at the first call for a model."""
    from torch.distributed.tensor import DTensor

    mesh = mesh_of(parameter)
    full = torch.empty(parameter.full_shape, device="meta")
    rows = rows.detach()
    if parameter.split:
        rows = _first_rows(parameter.gather_whole(rows), parameter)
    shown = DTensor.from_local(
        rows, mesh, placements_of(parameter), run_check=False, shape=full.shape, stride=full.stride()
    )
    setattr(shown, _RANK, (parameter.rank, parameter.world))
    return shown


def same_rows(parameter: ShardedParameter, rows: Tensor) -> Callable[[Tensor], Any]:
    """A function that wraps tensors like `rows` as `as_dtensor` does, at once: what it wraps is the tensor itself."""
    from torch.distributed.tensor import DTensor

    spec_as = functools.cache(functools.partial(spec_of, as_dtensor(parameter, rows)._spec))  # type: ignore[attr-defined]
    make: Any = DTensor

    def wrap(local: Tensor) -> Any:
        made = make(local, spec_as(local.dtype), requires_grad=False)
        setattr(made, _ROWS, True)
        return made

    return wrap


def within(tensor: Any) -> Tensor:
    """What `same_rows` has wrapped; other tensors themselves, DTensors of others included."""
    found: Tensor = tensor._local_tensor if getattr(tensor, _ROWS, False) else tensor
    return found


def rank_of(value: Tensor, parameter: ShardedParameter) -> tuple[int, int]:
    """Rank and number of ranks of the rows that one of our DTensors holds; by default this rank's."""
    here = (parameter.rank, parameter.world)
    found: tuple[int, int] = getattr(value, _RANK, here)
    return found


def rows_of(parameter: ShardedParameter, value: Any) -> Tensor:
    """This rank's part of a DTensor of the full shape, in whatever mesh and placements. Collective."""
    same_mesh = value.device_mesh == mesh_of(parameter)
    if same_mesh and tuple(value.placements) == tuple(placements_of(parameter)) and not parameter.split:
        rows: Tensor = value.to_local()
        return rows
    if parameter.split or parameter.layout is not None or not same_mesh:
        return rows_of_full(parameter, value.full_tensor())
    rows = value.redistribute(value.device_mesh, placements_of(parameter)).to_local()
    return rows


def rows_of_full(parameter: ShardedParameter, full: Tensor) -> Tensor:
    """This rank's part of a tensor of the full shape."""
    if parameter.layout is not None:
        full = parameter.layout.part_of(full)
    return parameter.take_local(full)


def placements_of(parameter: ShardedParameter) -> list[Any]:
    """Those of `mesh_of(parameter)`. A dimension that tensor parallelism has divided is divided again by the
    data-parallel ranks, which is out of the order of the mesh's dimensions: torch's _StridedShard, as in FSDP2."""
    from torch.distributed.tensor import Replicate, Shard

    layout = parameter.layout
    rows: Any = Replicate() if parameter.whole else Shard(parameter.dim)
    if layout is not None and not parameter.whole and (parts := layout.parts_along(parameter.dim)) > 1:
        from torch.distributed.tensor.placement_types import _StridedShard

        rows = _StridedShard(parameter.dim, split_factor=parts)
    over_data = [Replicate(), rows] if parameter.hybrid else [rows]
    return over_data if layout is None else [*over_data, *layout.placements]


def _first_rows(full: Tensor, parameter: ShardedParameter) -> Tensor:
    """This rank's rows under the placement Shard(0)."""
    chunk = -(-full.shape[0] // parameter.world)
    begin = min(chunk * parameter.rank, full.shape[0])
    return full[begin : begin + chunk].clone()
