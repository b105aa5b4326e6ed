"""Snapshot: the entries of one state_dict() call, made independent of the model."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from osdp.base.tensor_parallel import layout_of, storage_id
from osdp.base.tensor_trees import map_tensors, tensors_in
from osdp.sharding.dtensors import as_dtensor
from osdp.sharding.nested_models import names_in_parts
from osdp.sharding.own_values import own_sharded
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.sharded_parameters import ShardedParameter
from osdp.sharding.snapshot_writes import note_given


class Snapshot:
    """Note [A full state dict is a snapshot]
    torch's state_dict() shares memory with the model, so that what is saved later, or written into it, depends on what
    happens to the model meanwhile. Here the full values of a sharded parameter exist only for the state dict. Which
    parameters are sharded is the plan's choice, so entries that share memory with the model (parameters of NO_SHARD
    operators, buffers) are copied: whatever the plan, a full state dict has the values of the call, and writes into it reach
    no parameter. Names of one tensor keep sharing one copy. State dicts of rows (DTensors, local ones) share memory in all
    modes.

    Each module's entries are settled right after its own hooks, so that with `on_host` and `rank0_only` no rank holds more
    full values on the device than one module's. On ranks that keep nothing, entries without memory (meta) take their places
    until the call ends, for the hooks of modules around.
    """

    def __init__(self, model: nn.Module, sharded: Sharded, prefix: str) -> None:
        self.sharded = sharded
        # Inside summon_full_params values are full, whatever the form.
        self.form = sharded.form
        self.full = self.form.kind == "full" or (self.form.kind == "sharded" and sharded.runtime.summoned)
        self.parts = names_in_parts(model, prefix)  # left to the parts' own snapshots
        self.drops = self.form.rank0_only and sharded.runtime.rank != 0
        self.inside: list[nn.Module] = []  # the modules whose state_dict() is running
        # By storage: a live tensor, which is kept alive, so that nothing else gets its address.
        self._live: dict[int, Tensor] = {}
        self._copies: dict[object, Tensor] = {}

    def settle(self, module: nn.Module, state: Any, keys: Iterable[str]) -> None:
        """Make these entries, which the module and its children have written, independent of the model."""
        # What a module around has watched (see read_values.py) is not what runs here.
        with torch._C.DisableTorchFunction():
            if self.full:
                self._note_live(module)
            shown = self._shown(module)
            for key in [key for key in keys if not key.startswith(self.parts)]:
                state[key] = self._value(state[key], shown)

    def _value(self, value: Any, shown: dict[int, int]) -> Any:
        if isinstance(value, Tensor):
            return self._settled(value, shown)
        # Extra state; its containers are copied only where a tensor in them is.
        changed = any(self._settled(tensor, shown) is not tensor for tensor in tensors_in(value))
        return map_tensors(lambda tensor: self._settled(tensor, shown), value) if changed else value

    def end(self, state: Any, keys: Iterable[str]) -> None:
        if self.drops:
            for key in [key for key in keys if not key.startswith(self.parts)]:
                del state[key]
        note_given(self.sharded, state, {id(copy) for copy in self._copies.values()})

    def _note_live(self, module: nn.Module) -> None:
        sharded, summoned = self.sharded.tree.is_sharded, self.sharded.runtime.summoned
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.layout is torch.strided and (summoned or not sharded(tensor)):
                self._live[storage_id(tensor)] = tensor

    def _shown(self, module: nn.Module) -> dict[int, int]:
        """Storage of a full value that exists for this call -> index of the parameter."""
        if not self.full or self.sharded.runtime.summoned:
            return {}
        return {storage_id(p): index for _, _, p, index in own_sharded(module, self.sharded)}

    def _settled(self, tensor: Tensor, shown: dict[int, int]) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_meta:
            return tensor
        if self.full and self.drops:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        storage = storage_id(tensor)
        live = storage in self._live
        if not live and storage not in shown and self._is_sharded_parameter(tensor):
            return self._settled_other(tensor)
        if not live and storage not in shown:
            return tensor.cpu() if self.form.on_host else tensor
        kept = isinstance(tensor, nn.Parameter)  # keep_vars=True, or a module's own code
        at = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, kept)
        key = ("live", storage, *at) if live else ("shown", shown[storage], *at)
        if key not in self._copies:
            made = tensor.data  # not detach(): the version counter must not be the parameter's
            if isinstance(made, DTensor):
                made = made.full_tensor()
            if self.form.on_host and made.device.type != "cpu":
                made = made.cpu()
            elif live:
                made = made.clone()
            self._copies[key] = nn.Parameter(made, tensor.requires_grad) if kept else made
        return self._copies[key]

    def _is_sharded_parameter(self, tensor: Tensor) -> bool:
        runtime = self.sharded.runtime
        rows = self.form.kind == "local" or runtime.summoned
        return not rows and isinstance(tensor, nn.Parameter) and self.sharded.tree.is_sharded(tensor)

    def _settled_other(self, parameter: Tensor) -> Tensor:
        """A sharded parameter of another module, which the module's own code has stored as it is."""
        runtime, index = self.sharded.runtime, self.sharded.tree.index[id(parameter)]
        if not self.full:
            return self._settled(as_dtensor(ShardedParameter(self.sharded, index), parameter), {})
        newly = runtime.show_full([index], False)
        layout = layout_of(parameter)
        try:
            value = parameter if layout is None else layout.wrap(parameter.detach())
            return self._settled(value, {storage_id(parameter): index})
        finally:
            runtime.show_local(newly, False)


def newest(state: Any, before: int) -> list[str]:
    """The keys that were added since the dictionary had `before` entries."""
    return list(islice(reversed(state), max(len(state) - before, 0)))
