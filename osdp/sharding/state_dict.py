"""state_dict and load_state_dict of a sharded model use full tensors under the unwrapped model's names,
unless its StateDictForm says otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from osdp.errors import ShardingError
from osdp.sharding.cut_parameters import cut_parameter
from osdp.sharding.dtensors import as_dtensor, rows_of
from osdp.sharding.parts import names_in_parts, refuse_parts
from osdp.sharding.sharded_model import Sharded


def show_full_state(model: nn.Module, sharded: Sharded) -> None:
    """Install the hooks. They are on the modules that own sharded parameters, so that a submodule's state
    dict is full too; the model's own state_dict() looks for modules that were added since.

    state_dict() is collective (every rank gathers each parameter in turn) and makes full tensors on every rank;
    load_state_dict() is local (each rank copies its part), unless the state dict has DTensors.
    """
    model.register_state_dict_pre_hook(_Beginning(sharded))  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(_Assigning(sharded))  # type: ignore[no-untyped-call]
    show_full_parameters(model, sharded)
    model.register_state_dict_post_hook(_Ending(sharded))  # type: ignore[no-untyped-call]


def show_full_parameters(model: nn.Module, sharded: Sharded) -> None:
    """Install the hooks on modules that have none yet."""
    for module in model.modules():
        if module not in sharded.shown and any(_sharded_in(module, sharded)):
            module.register_state_dict_post_hook(_Saving(sharded))  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(_Loading(sharded))  # type: ignore[no-untyped-call]
            sharded.shown.add(module)


def _sharded_in(module: nn.Module, sharded: Sharded) -> Iterator[tuple[str, nn.Parameter, int]]:
    """The module's sharded parameters under each of their names in it, with their indices."""
    for key, parameter in module._parameters.items():
        if parameter is not None and sharded.tree.is_sharded(parameter):
            yield key, parameter, sharded.tree.index[id(parameter)]


class _Beginning:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    def __call__(self, module: nn.Module, prefix: str, keep_vars: bool) -> None:
        if self.sharded.form.kind == "sharded":
            refuse_parts(
                module,
                "A sharded state dict",
                "Take a full one (FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)), in which each rank has "
                "its own, or each part's by itself, in a directory per group",
            )
        self.sharded.tree.look_between_steps(module)


class _Saving:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        runtime, form = self.sharded.runtime, self.sharded.form
        for key, parameter, index in _sharded_in(module, self.sharded):
            if prefix + key not in state:
                continue
            # Inside summon_full_params the parameter is full already.
            full = runtime.summoned and list(parameter.shape) == runtime.full_shape(index)
            shown = parameter.detach().clone() if full else self._shown(index, parameter.detach())
            if form.rank0_only and runtime.rank != 0:
                del state[prefix + key]
            else:
                state[prefix + key] = shown.cpu() if form.on_host and form.kind == "full" else shown

    def _shown(self, index: int, local: Tensor) -> Tensor:
        sharded = self.sharded
        if sharded.form.kind == "full":
            return sharded.runtime.gather_whole(index, local)
        if sharded.form.kind == "local":
            return local
        name = next(name for name, i in sharded.index.items() if i == index)
        return as_dtensor(cut_parameter(sharded, name), local)


class _Ending:
    """Runs on the model after all its modules' hooks: gives the names of one parameter one tensor, and handles tensors that
    are not sharded. Those of its parts are left to the parts' own hooks, whose rank 0 is the first of their ranks."""

    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        form, rank = self.sharded.form, self.sharded.runtime.rank
        if form.kind == "full":
            self._share_tied(module, state, prefix)
        if not form.on_host and not form.rank0_only:
            return
        parts = names_in_parts(module, prefix)
        if parts and form.rank0_only and rank == 0:
            warnings.warn(
                f"OSDP: rank 0's state dict has the {parts[0].removesuffix('.')!r} of its own group of ranks. The other "
                "groups' are in the state dicts of their first ranks: save these too.",
                stacklevel=2,
            )
        for key in [key for key in state if key.startswith(prefix) and not key.startswith(parts)]:
            if form.rank0_only and rank != 0:
                del state[key]
            elif form.on_host and isinstance(state[key], Tensor):
                state[key] = state[key].cpu()

    def _share_tied(self, module: nn.Module, state: dict[str, Any], prefix: str) -> None:
        """As in the unwrapped model, whose tied weights safetensors stores once and expects once."""
        first: dict[nn.Parameter, str] = {}
        for name, parameter in module.named_parameters(prefix.removesuffix("."), remove_duplicate=False):
            if name in state and self.sharded.tree.is_sharded(parameter):
                state[name] = state[first.setdefault(parameter, name)]


class _Assigning:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
        tree = self.sharded.tree
        if metadata.get("assign_to_params_buffers", False) and any(map(tree.is_sharded, module.parameters())):
            raise ShardingError(
                "load_state_dict(assign=True) would replace the sharded parameters; load with assign=False"
            )
        if self.sharded.runtime.tree_changed:
            show_full_parameters(module, self.sharded)
        parts = names_in_parts(module)
        for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
            if name.startswith(parts):  # the parts' own hooks
                continue
            # It was sharded when saved, but is not sharded here: another plan, or not sharded yet.
            shown = state.get(prefix + name)
            if isinstance(shown, DTensor) and not tree.is_sharded(tensor):
                state[prefix + name] = shown.full_tensor()


class _Loading:
    def __init__(self, sharded: Sharded) -> None:
        self.sharded = sharded

    def __call__(
        self,
        module: nn.Module,
        state: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        runtime = self.sharded.runtime
        if metadata.get("assign_to_params_buffers", False):
            raise ShardingError(
                "load_state_dict(assign=True) would replace the sharded parameters; load with assign=False"
            )
        if runtime.summoned:
            return
        for key, parameter, index in _sharded_in(module, self.sharded):
            full = state.get(prefix + key)
            # torch's set_model_state_dict completes a full state dict by the model's own parameters.
            if full is None or full is parameter:
                continue
            wanted = tuple(runtime.full_shape(index))
            if self.sharded.form.kind == "local":
                continue  # local rows on both sides; torch compares the shapes
            if isinstance(full, DTensor) and tuple(full.shape) == wanted:
                state[prefix + key] = self._rows_of(index, full)
                continue
            if not isinstance(full, Tensor) or tuple(full.shape) != wanted:
                # Not left in place, where a tensor that happens to have this rank's local shape would be loaded as
                # the full one; and not removed, since it is not missing.
                state[prefix + key] = parameter
                found = tuple(full.shape) if isinstance(full, Tensor) else type(full).__name__
                errors.append(
                    f"size mismatch for {prefix + key}: {found} in the state dict, {wanted} in the model."
                )
            else:
                state[prefix + key] = runtime.take_local(index, full.detach())

    def _rows_of(self, index: int, shown: DTensor) -> Tensor:
        name = next(name for name, i in self.sharded.index.items() if i == index)
        return rows_of(cut_parameter(self.sharded, name), shown)
