"""CopiesRead: makes a copied model whose code still refers to the original's tensors use its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class CopiesRead(TorchFunctionMode):
    """While entered, operations on parameters and buffers of `original` receive those of `copy`.

    A deep copy leaves functions as they are, so a forward that is a closure, or holds its module by a weak reference (as
    FairScale's checkpoint_wrapper does), is still the original module's. Its backward would accumulate gradients on the
    original's parameters, and call their hooks.
    """

    def __init__(self, original: nn.Module, copy: nn.Module) -> None:
        super().__init__()
        copies = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
        named = [*original.named_parameters(), *original.named_buffers()]
        self._copy_of: dict[int, torch.Tensor] = {id(tensor): copies[name] for name, tensor in named}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(self._copy, args), **{key: self._copy(v) for key, v in (kwargs or {}).items()})

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_of.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        return value
