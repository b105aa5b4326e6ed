"""Known values among fake tensors: small integers, and what a forward makes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from osdp.base.tensor_trees import tensors_in
from osdp.description.fake_call_cache import VIEWS, view

_MOST_ELEMENTS = 2**18  # of a tensor that keeps its values


class ValuesLostError(Exception):
    """A tensor of known values was written to with unknown ones."""


# Note [Known values]
# Models ask their integers what to do: whether a mask is all ones, whether positions are consecutive, which
# number a random one is below. On fake tensors such a question has no answer, or, in models that ask first
# whether a tensor is fake, another one than in training. So small integer tensors and single numbers that
# the model or the sample holds are real ones beside the fake ones. What a forward makes from known values
# alone, or from none, as torch.ones does, is known, if it is small; whatever meets a fake tensor is fake.
# Should unknown values be written into a known tensor (a loss that is summed up in place, say), nothing can
# be told of it any more: ValuesLostError, and the forward is watched again with fewer known: first without
# fractions, then with everything fake.


class KnownValues:
    """Which tensors keep their values, and the ATen calls of a forward in which they do: `integers` (with
    booleans), also `fractions`, or none at all.
    """

    def __init__(self, integers: bool = True, fractions: bool = False) -> None:
        self.integers = integers
        self.fractions = integers and fractions

    def keeps_given(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the model or the sample does: of those with fractions, only single numbers."""
        return self.keeps(tensor) and (not _has_fractions(tensor) or tensor.numel() <= 1)

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a real tensor like `tensor` may stand among fake ones."""
        return (
            (self.fractions if _has_fractions(tensor) else self.integers)
            and tensor.numel() <= _MOST_ELEMENTS
            and tensor.device.type == "cpu"
            and not tensor.requires_grad
            and tensor.layout is torch.strided
        )

    @staticmethod
    def copy(tensor: torch.Tensor) -> torch.Tensor:
        """A real copy, also inside of a FakeTensorMode."""
        with no_dispatch():
            return tensor.detach().clone()

    def call(self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
        """`func(*args, **kwargs)`, an ATen call inside of a FakeTensorMode; for real where its values are known.

        `given` are the tensors among the arguments. Raises ValuesLostError.
        """
        real = [t for t in given if not isinstance(t, FakeTensor)]
        if len(real) < len(given):
            if real and func._schema.is_mutable and _written(func, args, kwargs) & {id(t) for t in real}:
                raise ValuesLostError(f"{func} wrote unknown values to known ones")
            if func in VIEWS and isinstance(args[0], FakeTensor):
                return view(func, args, kwargs)
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)  # fake, to learn how large it is
        except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException):
            if not all(self.keeps(t) for t in given):
                raise
            out = None  # not much more than the arguments, which are small
        if not all(self.keeps(t) for t in (*given, *tensors_in(out))):
            return out
        with no_dispatch():
            return func(*args, **kwargs)


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """Identities of the tensors that `func` writes to."""
    found: set[int] = set()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found.update(id(t) for t in tensors_in(value))
    return found
