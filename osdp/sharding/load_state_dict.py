"""load_state_dict of a sharded model takes full tensors, and DTensors, under the unwrapped model's names.

It is local (each rank copies its rows), except for modules that load by code of their own, whose parameters are gathered
(see Note [A module's own state-dict code]), and for DTensors. With `assign=True` it copies too: the model's tensors stay,
since the runtime and optimizers hold them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import shown_like
from osdp.sharding.dtensors import rows_of, rows_of_full
from osdp.sharding.own_values import (
    full_values,
    loading_code,
    own_sharded,
    reads_others,
    refuse_rows,
    stands_in,
    who,
)
from osdp.sharding.read_values import ReadValues
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.sharded_parameters import ShardedParameter

_ASSIGN = "assign_to_params_buffers"


def loading(
    module: nn.Module, sharded: Sharded, begin: Callable[[], None]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """`load_state_dict` and `_load_from_state_dict` of a module. `begin` is called before each load."""
    whole, own = module.load_state_dict, module._load_from_state_dict
    in_full = False  # within the module's own load_state_dict, which sees full values

    @functools.wraps(whole)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        nonlocal in_full
        own_values = any(True for _ in own_sharded(module, sharded))
        if not own_values or type(module).load_state_dict is nn.Module.load_state_dict:
            return whole(*args, **kwargs)
        code = ["load_state_dict"]
        if sharded.form.kind == "local" and not sharded.runtime.summoned:
            refuse_rows(module, "", code)
        with _whole(module, sharded, "", code, others=False):
            in_full = True
            try:
                return whole(*args, **kwargs)
            finally:
                in_full = False

    @functools.wraps(own)
    def _load_from_state_dict(
        state: dict[str, Any], prefix: str, metadata: dict[str, Any], strict: bool, *lists: list[str]
    ) -> None:
        begin()
        if metadata.get(_ASSIGN, False):
            _refuse_other_dtypes(module, sharded, state, prefix)
            metadata = {**metadata, _ASSIGN: False}
        code = loading_code(module)
        own_values = any(True for _ in own_sharded(module, sharded))
        if code and own_values and sharded.form.kind == "local" and not sharded.runtime.summoned:
            refuse_rows(module, prefix, code)
        with _copying():
            if code and (own_values or reads_others(module, sharded)):
                _take_full_tensors(module, state, prefix)
                with _whole(module, sharded, prefix, code, reads_others(module, sharded)):
                    own(state, prefix, metadata, strict, *lists)
            elif in_full:
                _take_full_tensors(module, state, prefix)
                own(state, prefix, metadata, strict, *lists)
            else:
                _take_rows(module, sharded, state, prefix, lists[-1])
                own(state, prefix, metadata, strict, *lists)
        for key, hook in module._load_state_dict_post_hooks.items() if code else ():
            hook = hook.hook if isinstance(hook, _PostHook) else hook
            module._load_state_dict_post_hooks[key] = _PostHook(key, hook, sharded, prefix)

    yield "load_state_dict", load_state_dict
    yield "_load_from_state_dict", _load_from_state_dict


class _PostHook:
    """Takes the place of a module's hook until it is called, after the children have been loaded."""

    def __init__(self, key: int, hook: Callable[..., Any], sharded: Sharded, prefix: str) -> None:
        self.key, self.hook, self.sharded, self.prefix = key, hook, sharded, prefix

    def __call__(self, module: nn.Module, keys: Any) -> Any:
        module._load_state_dict_post_hooks[self.key] = self.hook
        others = reads_others(module, self.sharded)
        with _whole(module, self.sharded, self.prefix, loading_code(module), others):
            return self.hook(module, keys)


@contextmanager
def _whole(module: nn.Module, sharded: Sharded, prefix: str, code: list[str], others: bool) -> Iterator[None]:
    """Context in which `code` of the module changes full values, of which each rank keeps its rows. `others`: also those of
    its children, which are not being loaded meanwhile."""
    own = list(own_sharded(module, sharded))
    with ExitStack() as stack:
        if others:
            stack.enter_context(ReadValues(sharded, keep=True))
        stack.enter_context(full_values(module, sharded, keep=True))
        try:
            yield
        except BaseException:
            for holder, key, parameter, _ in own:
                holder._parameters[key] = parameter
            raise
        for holder, key, parameter, index in own:
            full, now = tuple(sharded.runtime.full_shape(index)), holder._parameters.get(key)
            if stands_in(now):
                continue
            if now is parameter and parameter.shape != full:
                raise ShardingError(
                    f"{who(module, prefix, code)} has given {key!r} the shape {tuple(parameter.shape)}, which was "
                    f"{full} when the model was sharded. Load before fully_shard, or give the module a new nn.Parameter"
                )
            # A parameter of another shape is a new one, which the next step takes in.
            if now is not None and now is not parameter and (now.shape, now.dtype) == (full, parameter.dtype):
                with torch.no_grad():
                    parameter.copy_(now)
                holder._parameters[key] = parameter


@contextmanager
def _copying() -> Iterator[None]:
    """Context in which torch copies into parameters, also where it is set to swap them."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def _refuse_other_dtypes(module: nn.Module, sharded: Sharded, state: dict[str, Any], prefix: str) -> None:
    # State dicts have buffers that mixed precision has cast in their original dtypes.
    buffers = [] if sharded.buffer_dtypes else module.named_buffers(remove_duplicate=False)
    for name, tensor in (*module.named_parameters(remove_duplicate=False), *buffers):
        given = state.get(prefix + name)
        if isinstance(given, Tensor) and given.dtype != tensor.dtype:
            raise ShardingError(
                f"load_state_dict(assign=True): {prefix + name!r} is {given.dtype} in the state dict and {tensor.dtype} in "
                "the model, whose tensors keep their dtype once it is sharded: convert the state dict, or load with "
                "assign=False"
            )


def _own_keys(state: dict[str, Any], prefix: str) -> list[str]:
    return [key for key in state if key.startswith(prefix) and "." not in key[len(prefix) :]]


def _take_full_tensors(module: nn.Module, state: dict[str, Any], prefix: str) -> None:
    for key in _own_keys(state, prefix):
        own = module._parameters.get(key[len(prefix) :])
        if isinstance(state[key], DTensor) and not isinstance(own, DTensor):
            state[key] = state[key].full_tensor()


def _take_rows(
    module: nn.Module, sharded: Sharded, state: dict[str, Any], prefix: str, errors: list[str]
) -> None:
    """Give torch this rank's rows of what it is going to copy into the module's parameters."""
    runtime = sharded.runtime
    taken: dict[str, Tensor] = {}  # key in `state` -> the parameter or buffer
    for key, tensor in (*module._parameters.items(), *module._buffers.items()):
        given = state.get(prefix + key)
        # torch's set_model_state_dict completes a full state dict by the model's own parameters.
        if given is None or tensor is None or given is tensor:
            continue
        if not sharded.tree.is_sharded(tensor) or runtime.summoned:
            # It was sharded when saved, but is not sharded here: another plan, or not sharded yet.
            if isinstance(given, DTensor) and not isinstance(tensor, DTensor):
                state[prefix + key] = given = given.full_tensor()
            if not sharded.tree.is_sharded(tensor) and given.shape == tensor.shape:
                taken[prefix + key] = tensor
            continue
        if sharded.form.kind == "local":
            continue  # local rows on both sides; torch compares the shapes
        parameter = ShardedParameter(sharded, sharded.tree.index[id(tensor)])
        full = parameter.full_shape
        if isinstance(given, DTensor) and tuple(given.shape) == full:
            state[prefix + key] = rows_of(parameter, given)
            taken[prefix + key] = tensor
        elif isinstance(given, Tensor) and tuple(given.shape) == full:
            state[prefix + key] = rows_of_full(parameter, given.detach())
            taken[prefix + key] = tensor
        else:
            # Not left in place, where a tensor that happens to have this rank's local shape would be loaded as
            # the full one; and not removed, since it is not missing.
            state[prefix + key] = tensor
            found = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            errors.append(
                f"size mismatch for {prefix + key}: {found} in the state dict, {full} in the model."
            )
    for name, tensor in taken.items():
        if (wrap := shown_like(tensor)) is not None and isinstance(state[name], Tensor):
            state[name] = wrap(state[name])
