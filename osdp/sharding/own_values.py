"""Shows a module the values of its sharded parameters while its own code runs outside of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from osdp.base.tensor_parallel import layout_of
from osdp.errors import ShardingError
from osdp.sharding.dtensors import as_dtensor
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.sharded_parameters import ShardedParameter

_STANDS_IN = "_osdp_stands_in"  # attribute of a parameter


def own_sharded(module: nn.Module, sharded: Sharded) -> Iterator[tuple[nn.Module, str, nn.Parameter, int]]:
    """The sharded parameters that belong to `module`: the module that holds each, its key there, and its index. Those of its
    parametrizations are its own, since `module.weight` computes the weight from them."""
    made_from = module._modules.get("parametrizations")
    for holder in (module, *(made_from.modules() if made_from is not None else ())):
        for key, parameter in holder._parameters.items():
            if parameter is not None and sharded.tree.is_sharded(parameter):
                yield holder, key, parameter, sharded.tree.index[id(parameter)]


def in_modules(model: nn.Module, sharded: Sharded) -> Iterator[tuple[nn.Module, str, nn.Parameter, int]]:
    """Every place of the sharded model's parameters, like `own_sharded`."""
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and (index := sharded.tree.index.get(id(parameter))) is not None:
                yield module, key, parameter, index


def reads_others(module: nn.Module, sharded: Sharded) -> bool:
    """Whether there are sharded parameters in `module` besides its own."""
    own = {id(parameter) for _, _, parameter, _ in own_sharded(module, sharded)}
    return any(sharded.tree.is_sharded(p) for p in module.parameters() if id(p) not in own)


@contextmanager
def full_values(module: nn.Module, sharded: Sharded, keep: bool = False) -> Iterator[None]:
    """Context in which the module's sharded parameters have their full values; those that have them already are left alone.
    Collective at its beginning. `keep`: each rank keeps what was written to its rows, unless the context ends by an error.
    """
    runtime = sharded.runtime
    shown = (
        []
        if runtime.summoned
        else runtime.show_full([index for *_, index in own_sharded(module, sharded)], keep)
    )
    done = False
    try:
        with whole_over_data(own_sharded(module, sharded)):
            yield
        done = True
    finally:
        runtime.show_local(shown, keep and done)


@contextmanager
def whole_over_data(
    own: Iterable[tuple[nn.Module, str, nn.Parameter, int]],
) -> Iterator[None]:
    """Context in which modules find DTensors in the place of parameters of tensor parallelism whose whole part is shown:
    it is not their value. They share its memory."""
    placed: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
    with torch._C.DisableTorchFunction():
        for holder, key, parameter, _ in list(own):
            if (layout := layout_of(parameter)) is not None:
                shown = nn.Parameter(layout.wrap(parameter.detach()), requires_grad=parameter.requires_grad)
                setattr(shown, _STANDS_IN, True)
                if parameter.grad is not None and parameter.grad.shape == parameter.shape:
                    shown.grad = layout.wrap(parameter.grad)
                placed.append((holder, key, parameter, shown))
                holder._parameters[key] = shown
    try:
        yield
    finally:
        for holder, key, parameter, shown in placed:
            if holder._parameters.get(key) is shown:
                holder._parameters[key] = parameter


def stands_in(parameter: object) -> bool:
    """Whether it is one that `whole_over_data` has put in another's place."""
    return getattr(parameter, _STANDS_IN, False)


@contextmanager
def dtensor_values(module: nn.Module, sharded: Sharded) -> Iterator[None]:
    """Context in which the module's sharded parameters are DTensors that share the rows' memory, as FSDP2's are."""
    own = list(own_sharded(module, sharded))
    try:
        with torch._C.DisableTorchFunction():  # a module around may read values: see read_values.py
            for holder, key, parameter, index in own:
                shown = as_dtensor(ShardedParameter(sharded, index), parameter)
                holder._parameters[key] = nn.Parameter(shown, requires_grad=parameter.requires_grad)
        yield
    finally:
        for holder, key, parameter, _ in own:
            holder._parameters[key] = parameter


def saving_code(module: nn.Module) -> list[str]:
    """What the module has of its own that runs in state_dict(); for errors."""
    return _own_code(
        module,
        ("state_dict", "_save_to_state_dict", "get_extra_state"),
        ("_state_dict_pre_hooks", "_state_dict_hooks"),
    )


def loading_code(module: nn.Module) -> list[str]:
    """What the module has of its own that runs where it is loaded."""
    return _own_code(
        module,
        ("_load_from_state_dict", "set_extra_state"),
        ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    )


def _own_code(module: nn.Module, methods: tuple[str, ...], hooks: tuple[str, ...]) -> list[str]:
    found = []
    for name in methods:
        function: Any = getattr(type(module), name)
        # torch's own classes (BatchNorm) do not look at parameters there.
        if function is not getattr(nn.Module, name) and not _is_from(function, "torch.nn.modules.", "osdp."):
            found.append(name)
    for name in hooks:
        for hook in vars(module).get(name, {}).values():
            hook = getattr(hook, "hook", hook)  # torch wraps those that get the module
            if not _is_from(hook, "osdp."):
                found.append(f"the {name[1:-1]} {getattr(hook, '__qualname__', type(hook).__name__)}")
    return found


def _is_from(function: object, *packages: str) -> bool:
    return (getattr(function, "__module__", None) or "").startswith(packages)


def who(module: nn.Module, prefix: str, code: list[str]) -> str:
    """For errors."""
    name = prefix.removesuffix(".") or "the model"
    return f"{', '.join(code)} of {name!r}, a {type(module).__name__},"


def refuse_rows(module: nn.Module, prefix: str, code: list[str]) -> None:
    raise ShardingError(
        f"{who(module, prefix, code)} would take this rank's rows, which a local state dict has, for its "
        "parameters' values. Use a full state dict or a sharded one"
    )
