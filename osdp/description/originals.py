"""CopiesRead: makes a copied model whose code still refers to the original's tensors use its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_HOOKS = {
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.retain_grad,
    torch.Tensor.requires_grad_,
    vars(torch._C.TensorBase)["grad_fn"].__get__,
}


class CopiesRead(TorchFunctionMode):
    """While entered, operations on parameters and buffers of `original` receive those of `copy`.

    A deep copy leaves functions as they are, so a forward that is a closure, or holds its module by a weak reference (as
    FairScale's checkpoint_wrapper does), is still the original module's. Its backward would accumulate gradients on the
    original's parameters, and call their hooks. `on_hook` is called for operations after which a backward may run code of
    the model's.
    """

    def __init__(self, original: nn.Module, copy: nn.Module, on_hook: Callable[[], None]) -> None:
        super().__init__()
        self._on_hook = on_hook
        copies = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
        named = [*original.named_parameters(), *original.named_buffers()]
        self._copy_of: dict[int, torch.Tensor] = {id(tensor): copies[name] for name, tensor in named}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOOKS:
            self._on_hook()
        copy = self._copy
        return func(*map(copy, args), **({key: copy(v) for key, v in kwargs.items()} if kwargs else {}))

    def _copy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copy_of.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(self._copy, value))
        return value
