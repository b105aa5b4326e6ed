"""Initialising after `model.to_empty()`: methods that initialise get full parameters, one method at a time.

Note [Initialising after to_empty]
FSDP2's way from the meta device is `fully_shard`, `model.to_empty(device=...)`, then `reset_parameters()` of every module
(or a method of the user's, or `model.apply(function)`, or torch.nn.init's functions for one parameter after another). Such
code computes with shapes and draws random numbers, so on this rank's rows it would give other values. After to_empty no
parameter has a value, and until the next forward these methods and functions run with full parameters: one that they
touch is gathered then, in whatever way they touch it, stays full until the method ends, gets rank 0's values, and each
rank keeps its rows. So values and random numbers are those of one process. Parameters that every rank holds in full are
compared between ranks at the next forward instead. All ranks must call the same, in the same order.
  A parameter that tensor parallelism divides is shown as its whole, gathered over both meshes, and takes the values of the
first rank of both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from osdp.base.tensor_parallel import Layout, layout_of
from osdp.ranks.rank_group import Together
from osdp.sharding.forward_methods import part_of
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.read_values import ReadValues
from osdp.sharding.sharded_model import Sharded

_METHODS = (
    *("apply", "reset_parameters", "_reset_parameters", "init_weights", "_init_weights"),
    *("init_parameters", "initialize_weights"),
)


class Initialising(ReadValues):
    """The call of a method that initialises."""

    def __init__(self, sharded: Sharded) -> None:
        super().__init__(sharded, keep=True)
        self._around: Initialising | None = sharded.initialising
        # Shown as the whole; this rank's part of it.
        self._parts: list[tuple[nn.Parameter, Layout, Tensor]] = []

    def _read(self, given: Any, name: str) -> Any:
        if not isinstance(given, nn.Parameter) or id(given) not in self.sharded.tree.index:
            return super()._read(given, name)
        if (layout := layout_of(given)) is None:
            return super()._read(given, name)
        self._show_whole(given, layout)
        return given

    def _show_whole(self, parameter: nn.Parameter, layout: Layout) -> None:
        """A part of tensor parallelism is initialised as its whole. Collective over its mesh, too."""
        innermost: Initialising = self.sharded.initialising or self
        if innermost.shows_whole(parameter):
            return
        self._shown += self.sharded.runtime.show_full([self.sharded.tree.index[id(parameter)]], self.keep)
        with torch._C.DisableTorchFunction():
            part = parameter.detach()
            parameter.data = layout.whole_of(part)
        self._parts.append((parameter, layout, part))

    def shows_whole(self, parameter: nn.Parameter) -> bool:
        """Whether this call or one around it shows the parameter as the whole."""
        if any(known is parameter for known, _, _ in self._parts):
            return True
        return self._around is not None and self._around.shows_whole(parameter)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        parts, self._parts = self._parts, []
        with torch._C.DisableTorchFunction():
            for parameter, layout, part in parts:
                if error is None:
                    part.copy_(layout.part_of(parameter.detach()))
                parameter.data = part
        super().__exit__(kind, error, trace)

    def shows(self, tensor: Tensor, index: int) -> bool:
        """Whether `tensor`, which shares memory with the parameter, is of its full value; a parameter itself is made so."""
        self._read(tensor, "")
        with torch._C.DisableTorchFunction():
            parameter = self.sharded.tree.known[index]
            layout = layout_of(parameter)
            whole = self.sharded.runtime.full_shape(index) if layout is None else layout.shape
            return list(parameter.shape) == list(whole)

    def take_first(self) -> None:
        """Rank 0's values for what was shown. Collective."""
        with torch._C.DisableTorchFunction():
            for parameter, layout, _ in self._parts:
                layout.take_first(parameter.detach())
            shown = [self.sharded.tree.known[i].detach() for i in self._shown]
            shown += [
                p.detach() for p, _, _ in self._parts if self.sharded.tree.index[id(p)] not in self._shown
            ]
            if shown:
                self.sharded.lane.collectives.broadcast(shown)


def install_to_empty(model: nn.Module, sharded: Sharded) -> None:
    """Make `to_empty` of the model's modules that hold sharded parameters begin that."""
    for module in model.modules():
        if any(map(sharded.tree.is_sharded, module.parameters())):  # others can be copied and pickled
            module.to_empty = _and_initialise(module)  # type: ignore[method-assign]


def _and_initialise(module: nn.Module) -> Callable[..., Any]:
    original = getattr(module.to_empty, "_osdp_method", module.to_empty)

    @functools.wraps(original)
    def to_empty(*, device: Any, recurse: bool = True) -> Any:
        original(device=device, recurse=recurse)
        if recurse:
            _initialise_in_full(module)
        return module

    to_empty._osdp_method = original  # type: ignore[attr-defined]
    return to_empty


def _initialise_in_full(part: nn.Module) -> None:
    """Until the next forward of `part`, which has just been emptied, what initialises it gets full parameters."""
    model, sharded, _ = part_of(part)
    changes = ModuleChanges.on(model)
    emptied = {sharded.tree.index[id(p)] for p in part.parameters() if sharded.tree.is_sharded(p)}
    sharded.emptied |= emptied
    sharded.in_full = functools.partial(_in_full, sharded)
    put: list[tuple[nn.Module, str, object, object]] = []
    for module in part.modules():
        for name in _METHODS:
            method = getattr(module, name, None)
            if callable(method) and any(map(sharded.tree.is_sharded, module.parameters())):
                was = vars(module).get(name)
                given = _in_full(sharded, getattr(method, "_osdp_method", method), name)
                changes.put(module, name, given)
                put.append((module, name, was, given))

    def end(*_: object) -> None:
        ending.remove()
        sharded.emptied -= emptied
        for module, name, was, given in put:
            if vars(module).get(name) is given:
                if was is None:
                    delattr(module, name)
                else:
                    setattr(module, name, was)

    ending = part.register_forward_pre_hook(end, prepend=True)  # the latest to_empty() ends first


def _in_full(sharded: Sharded, method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def initialising(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or sharded.in_use:
            return method(*args, **kwargs)
        around, result, error = sharded.initialising, None, None
        with Initialising(sharded) as sharded.initialising:
            try:
                result = method(*args, **kwargs)
            except Exception as caught:
                error = caught
            finally:
                here, sharded.initialising = sharded.initialising, around
            with torch._C.DisableTorchFunction():
                together = Together(sharded.group, f"{name}() after to_empty()")
                try:
                    together.raise_everywhere("initialising", error)
                except Exception as everyones:
                    if error is None or everyones is error:
                        raise
                    raise error from everyones
            here.take_first()
        return result

    initialising._osdp_method = method  # type: ignore[attr-defined]
    return initialising
