"""Known values among fake tensors: small integers, and single numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from osdp.nested import tensors_in

_VIEW, _UNSAFE_VIEW = torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default
_MOST_ELEMENTS = 2**18  # of a tensor of integers or booleans that keeps its values


class ValuesLostError(Exception):
    """A tensor of known values was written to with unknown ones."""


# Note [Known values]
# Models ask their integers what to do: whether a mask is all ones, whether positions are consecutive, which
# number a random one is below. On fake tensors such a question has no answer, or, in models that ask first
# whether a tensor is fake, another one than in training. So small integer tensors, and single numbers, are
# real ones beside the fake ones. What is made from known values alone is known, if it is small; whatever
# meets a fake tensor is fake. Should unknown values be written into a known tensor, nothing can be told of
# it any more: ValuesLostError, and the forward is watched again with everything fake.


def keeps_values(tensor: torch.Tensor) -> bool:
    """Whether a real tensor like `tensor` may stand among fake ones."""
    number = tensor.is_floating_point() or tensor.is_complex()
    return (
        tensor.device.type == "cpu"
        and not tensor.requires_grad
        and tensor.layout is torch.strided
        and tensor.numel() <= (1 if number else _MOST_ELEMENTS)
    )


def known_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A real copy, also inside of a FakeTensorMode."""
    with no_dispatch():
        return tensor.detach().clone()


def call(func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    """`func(*args, **kwargs)`, an ATen call inside of a FakeTensorMode; for real where its values are known.

    `given` are the tensors among the arguments. Raises ValuesLostError.
    """
    known = [t for t in given if not isinstance(t, FakeTensor)]
    if len(known) < len(given):
        if known and func._schema.is_mutable and _written(func, args, kwargs) & {id(t) for t in known}:
            raise ValuesLostError(f"{func} wrote unknown values to known ones")
        # The same storage either way, and what FakeTensorMode knows of a view it remembers from the last one.
        return (_VIEW if func is _UNSAFE_VIEW else func)(*args, **kwargs)
    try:
        out = func(*args, **kwargs)  # fake, to learn how large it is
    except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException):
        out = None  # not more than the arguments, which are small
    if not all(keeps_values(t) for t in (*given, *tensors_in(out))):
        return out
    with no_dispatch():
        return func(*args, **kwargs)


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """Identities of the tensors that `func` writes to."""
    found: set[int] = set()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.update(id(t) for t in tensors_in(value))
    return found
