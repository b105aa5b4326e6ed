"""Elsewhere: what a stage's forward computes from modules that are elsewhere, in other stages.

Note [What depends on other stages]
What stands in for modules of other stages is NaN, and so are losses that depend on it, but a comparison, `nan_to_num` or
`argmax` makes numbers of it that are wrong without a word. So in the first step each function of torch that forward calls is
followed: what it makes of a tensor from elsewhere is from elsewhere, too, whatever its values. What a stage passes on, and
the model's output, must not be. Modules that a stage has whole are not looked into: their outputs are from elsewhere if
one of their inputs is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from osdp.base.storage_numbers import StorageNumbers
from osdp.base.tensor_parallel import local_part
from osdp.base.tensor_trees import tensors_held

# These look at the shape, dtype and device of their other arguments alone.
_OF_THE_FIRST = ("to", "type_as", "expand_as", "view_as", "reshape_as")


class Elsewhere(TorchFunctionMode):
    """Context of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""  # the module elsewhere that the stage's output depends on
        self._numbers = StorageNumbers()
        self._from: dict[int, str] = {}  # number of a storage -> the module elsewhere
        self._inside: list[str] = []  # of modules that run: where their inputs are from
        self._hooks: list[Any] = []

    def has(self, module: nn.Module) -> None:
        """The stage has `module` whole."""
        self._hooks.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def mark(self, values: Any, name: str) -> None:
        """What is in `values` is from the module `name`."""
        for tensor in map(local_part, tensors_held(values)):
            if tensor.layout is torch.strided:
                self._from[self._numbers.of(tensor)] = name

    def source(self, values: Any) -> str:
        """The module elsewhere that something in `values` is from, or ""."""
        for tensor in map(local_part, tensors_held(values)):
            if tensor.layout is torch.strided and (name := self._from.get(self._numbers.of(tensor))):
                return name
        return ""

    def look(self, output: Tensor) -> None:
        """`output` is what the stage passes on, or the model's output."""
        self.found = self.found or self.source(output)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._inside and self._from:
            with torch._C.DisableTorchFunction():
                self._follow(getattr(func, "__name__", ""), args, kwargs, result)
        return result

    def _follow(self, called: str, args: Any, kwargs: Any, result: Any) -> None:
        if called.endswith("_like") or called.startswith("new_"):
            return
        name = self.source(args[:1] if called in _OF_THE_FIRST else (args, kwargs))
        if name:
            self.mark(result, name)
            if called == "__setitem__" or called.startswith("__i") or called.endswith("_"):
                self.mark(args[0], name)  # written to

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        with torch._C.DisableTorchFunction():
            self._inside.append(self.source((args, kwargs)))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        with torch._C.DisableTorchFunction():
            if name := self._inside.pop() if self._inside else "":
                self.mark(output, name)
