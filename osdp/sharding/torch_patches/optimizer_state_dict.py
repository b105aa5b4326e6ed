"""Optimizer state dicts: states of sharded parameters are DTensors in them, so that torch's tools see the
full tensor.

Note [DTensors at the border]
Internally parameters and states are plain tensors with this rank's rows, on which optimizers step at full
speed (docs/dtensor.md has the figures). torch.distributed.checkpoint, `get_optimizer_state_dict` and similar
tools must know the position of the rows: `Optimizer.state_dict()` shows them as DTensors, which share the
rows' memory, and `load_state_dict()` converts DTensors, or the full tensors of one process, back to rows.
Both are replaced on the class, so this also works for optimizers created before the model was sharded. Rows
are distributed as in DTensor: ceil(rows / ranks) each, along the same dimension; with HYBRID_SHARD the mesh
has two dimensions. A split weight is stored slice by slice, which no placement describes: its states are
gathered and shown as `Shard(0)` of the ordinary layout, which is collective.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from osdp.base.tensor_parallel import is_dtensor
from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import shown_like, shows_dtensors
from osdp.sharding.dtensors import as_dtensor, rank_of, rows_of, rows_of_full
from osdp.sharding.parameter_meshes import mesh_of
from osdp.sharding.sharded_parameters import ShardedParameter, sharded_parameters
from osdp.sharding.torch_patches.groups_without_settings import check_settings
from osdp.sharding.torch_patches.replaced import replace
from osdp.sharding.torch_patches.states_of_optimizers import holds_states

Value = Any


def install_optimizer_state() -> None:
    replace(Optimizer, "state_dict", _showing)
    replace(Optimizer, "load_state_dict", _taking_apart)


def _showing(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @functools.wraps(original)
    def state_dict(self: Optimizer) -> dict[str, Any]:
        shown = original(self)
        cut = _cut_of(self)
        if not cut:
            return shown
        places = dict(zip(_indices(shown["param_groups"]), _parameters(self), strict=True))
        states: dict[Any, Any] = {}
        for key, state in shown["state"].items():
            parameter = cut.get(id(places.get(key)))
            states[key] = state if parameter is None else _map(state, _Shown(self, parameter))
        return {**shown, "state": states}

    return state_dict


def _taking_apart(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_state_dict(self: Optimizer, state_dict: dict[str, Any]) -> None:
        check_settings(self, state_dict.get("param_groups", []))
        cut = _cut_of(self)
        if cut:
            holds_states(self)
        shown = shows_dtensors(_parameters(self))
        if (cut or shown) and "state" in state_dict and "param_groups" in state_dict:
            # torch reports a wrong number of parameters.
            places = dict(zip(_indices(state_dict["param_groups"]), _parameters(self), strict=False))
            states = {}
            for key, state in state_dict["state"].items():
                place = places.get(key)
                wrap = None if place is None else shown_like(place)
                if (parameter := cut.get(id(place))) is not None:
                    state = _map(state, _Local(self, parameter, wrap))
                elif place is not None and wrap is not None:
                    state = _map(state, functools.partial(_whole, place.shape, wrap))
                states[key] = state
            state_dict = {**state_dict, "state": states}
        original(self, state_dict)

    return load_state_dict


def _cut_of(optimizer: Optimizer) -> dict[int, ShardedParameter]:
    return sharded_parameters(_parameters(optimizer))


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _indices(groups: list[dict[str, Any]]) -> Iterator[Any]:
    return (index for group in groups for index in group["params"])


def _map(value: Value, function: Callable[[Tensor, str], Tensor], key: str = "") -> Value:
    """`value` with every tensor replaced; `key`: the innermost name in the state."""
    if isinstance(value, Tensor):
        return function(value, key)
    if isinstance(value, dict):
        return {k: _map(v, function, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_map(v, function, key) for v in value)
    return value


# torch's optimizers keep these as plain tensors; of a parameter without dimensions they have its shape.
_COUNTERS = {"step", "eta", "mu", "mu_product"}


def _whole(shape: torch.Size, wrap: Callable[[Tensor], Tensor], value: Tensor, key: str) -> Tensor:
    """A full tensor as the optimizer keeps it of a parameter that is a DTensor of which each rank has all."""
    return value if is_dtensor(value) or value.shape != shape or key in _COUNTERS else wrap(value)


class _Shown:
    """Converts one tensor of a parameter's state, this rank's rows, to a DTensor of the full shape."""

    def __init__(self, optimizer: Optimizer, parameter: ShardedParameter) -> None:
        self.kind, self.parameter = type(optimizer).__name__, parameter

    def __call__(self, value: Tensor, key: str) -> Tensor:
        from torch.distributed.tensor import DTensor

        parameter = self.parameter
        if isinstance(value, DTensor):
            return value
        if tuple(value.shape) != parameter.local_shape:
            if value.numel() == 1:
                return value
            raise ShardingError(
                f"{parameter.rank_name}: the state {key!r} that {self.kind} keeps of "
                f"'{parameter.name}' has shape {list(value.shape)}, which is neither that of this "
                f"rank's part of the parameter, {list(parameter.local_shape)}, nor a scalar's: it "
                "cannot be represented as a part of a full tensor. Give the operator NO_SHARD "
                f"({parameter.advice})."
            )
        return as_dtensor(parameter, value)


class _Local:
    """Converts a DTensor or full tensor in a state dict to this rank's part. `wrap`: what the optimizer keeps of it."""

    def __init__(
        self, optimizer: Optimizer, parameter: ShardedParameter, wrap: Callable[[Tensor], Tensor] | None
    ) -> None:
        self.kind, self.parameter, self._wrap = type(optimizer).__name__, parameter, wrap

    def __call__(self, value: Tensor, key: str) -> Tensor:
        local = self._part(value, key)
        return local if self._wrap is None or local.dim() == 0 else self._wrap(local)

    def _part(self, value: Tensor, key: str) -> Tensor:
        from torch.distributed.tensor import DTensor

        parameter = self.parameter
        what = f"{parameter.rank_name}: the state {key!r} of '{parameter.name}' in the {self.kind} state dict"
        instead = (
            "to change the number of ranks, use osdp.save and osdp.load, "
            "torch.distributed.checkpoint, or get_optimizer_state_dict with full_state_dict=True"
        )
        if tuple(value.shape) == parameter.full_shape:
            if not isinstance(value, DTensor):
                return rows_of_full(parameter, value)
            here, of_rank = (parameter.rank, parameter.world), rank_of(value, parameter)
            if of_rank != here or value.device_mesh != mesh_of(parameter):
                raise ShardingError(
                    f"{what} holds the rows of rank {of_rank[0]} of {value.device_mesh.size()}, but "
                    f"this is rank {here[0]} of {here[1]}: a file written by "
                    "torch.save(optimizer.state_dict()) holds one rank's rows and can be loaded only "
                    f"by that rank; {instead}."
                )
            local = rows_of(parameter, value)
            if tuple(local.shape) == parameter.local_shape:
                return local
        elif value.numel() == 1:
            return value
        raise ShardingError(
            f"{what} has shape {list(value.shape)}, but the full parameter has "
            f"{list(parameter.full_shape)}, so OSDP cannot tell which part this is; {instead}."
        )
