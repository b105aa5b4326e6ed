"""Whether autograd adds a gradient to an earlier one in place, which it does not in a traced backward."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_ADD = torch.ops.aten.add.Tensor

# Note [Sums of gradients]
# Where a tensor is used twice, autograd's engine adds the second gradient to the first. If nothing else holds the first
# and no dispatch mode is active, it does so in place; while a mode is active, as in a trace, it makes a new tensor. Who
# holds a tensor is counted by its references; how many there are while only the engine does is counted once, in a small
# backward under a mode. A sum that a derivative's formula computes of two tensors of its own looks the same; its result
# replaces one of them a moment later.


def is_sum(func: Any, args: Any) -> bool:
    """Whether the ATen call may be a sum of two gradients."""
    return func is _ADD and len(args) == 2 and all(isinstance(a, torch.Tensor) for a in args)


def sums_in_place(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the ATen call of a traced backward is a sum that a real one computes in the memory of `args[0]`."""
    if kwargs or not is_sum(func, args):
        return False
    first, second = args
    if first.shape != second.shape or first.dtype != second.dtype or first.layout is not torch.strided:
        return False
    whole = first.untyped_storage().nbytes() == first.numel() * first.element_size()
    return whole and second.layout is torch.strided and _references(first) == held_by_engine()


def _references(tensor: torch.Tensor) -> tuple[int, int]:
    """Of the tensor, and of its storage."""
    counted: Any = tensor
    return counted._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


@cache
def held_by_engine() -> tuple[int, int] | None:
    """The references to a gradient that only the engine holds, as a mode sees it; None if it is not added to in place."""
    if not hasattr(torch.Tensor, "_use_count") or not hasattr(torch._C, "_storage_Use_Count"):
        return None
    found: list[tuple[int, int]] = []

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _ADD and not kwargs:
                found.append(_references(args[0]))
            return func(*args, **(kwargs or {}))

    made: list[int] = []
    sums: list[int] = []
    with _disable_current_modes(), torch.enable_grad():
        _twice(made, sums)
        with Counting():  # type: ignore[no-untyped-call]
            _twice([], [])
    return found[-1] if found and set(sums) <= set(made) else None


class _Fresh(torch.autograd.Function):
    """The identity, whose gradient is a tensor of its own; notes the gradient's address."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, made: list[int]) -> torch.Tensor:
        ctx.made = made
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        own = gradients[0].clone()
        ctx.made.append(own.data_ptr())
        return own, None


def _twice(made: list[int], sums: list[int]) -> None:
    """A backward in which two gradients are added."""
    x = torch.zeros(64, requires_grad=True)
    y: Any = x * 1.0
    y.register_hook(lambda gradient: sums.append(gradient.data_ptr()))
    fresh: Any = _Fresh.apply
    loss: Any = torch.stack((fresh(y, made), fresh(y, made))).sum()
    loss.backward()
