"""Contexts of a trace: a copied model whose code still refers to the original's tensors uses its own (CopiesRead), and what
DTensor computes to find the layouts of results is kept out (layouts_unseen).

For each new call DTensor runs the operator once on fake tensors of the whole shapes. Under the modes that record a
trace that would count as another computation, of the whole operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

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


@contextmanager
def layouts_unseen() -> Iterator[None]:
    loaded = sys.modules.get("torch.distributed.tensor")
    propagator: Any = getattr(
        getattr(getattr(loaded, "DTensor", None), "_op_dispatcher", None), "sharding_propagator", None
    )
    found = getattr(propagator, "_propagate_tensor_meta_non_cached", None)  # private to torch
    if found is None:
        yield
        return

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return found(*args, **kwargs)

    propagator._propagate_tensor_meta_non_cached = unseen
    try:
        yield
    finally:
        del propagator._propagate_tensor_meta_non_cached
