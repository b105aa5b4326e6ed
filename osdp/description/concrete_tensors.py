"""Tensors with known values among fake tensors: small integers and results computed from them."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

from osdp.base.tensor_trees import tensors_in, written_to
from osdp.description.fake_calls import VIEWS, view

_MOST_ELEMENTS = 2**18  # of a tensor with known values


class ValuesLostError(Exception):
    """Unknown values were written into a tensor of known values."""


# Note [Known values]
# Models branch on values of integer tensors: whether a mask is all ones, whether positions are consecutive,
# whether a random number is below a threshold. Fake tensors have no values, and models that check for fake
# tensors would take a different branch than in training. So small integer tensors and single numbers of the
# model or the sample are real tensors among the fake ones. Small results computed only from known values, or
# from no tensors (torch.ones), are known too; results that depend on a fake tensor are fake. If unknown
# values are written into a known tensor (such as a loss that is summed up in place), its values are lost:
# ValuesLostError is raised, and the forward is traced again with fewer known values: first without fractions,
# then with everything fake.


class KnownValues:
    """Decides which tensors have known values, and runs ATen calls on them: `integers` (and booleans), also
    `fractions`, or none.
    """

    def __init__(self, integers: bool = True, fractions: bool = False) -> None:
        self.integers = integers
        self.fractions = integers and fractions

    def keeps_given(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the model or the sample keeps its values; floating-point tensors only if they
        are single numbers."""
        return self.keeps(tensor) and (not _has_fractions(tensor) or tensor.numel() <= 1)

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor like `tensor` may be a real one among fake ones."""
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
        """Run the ATen call `func(*args, **kwargs)` inside of a FakeTensorMode, on real tensors if the values
        are known.

        `given` are the tensors among the arguments. Raises ValuesLostError.
        """
        real = [t for t in given if not isinstance(t, FakeTensor)]
        if len(real) < len(given):
            if (
                real
                and func._schema.is_mutable
                and any(t is r for t in written_to(func, args, kwargs) for r in real)
            ):
                raise ValuesLostError(f"{func} wrote unknown values into a tensor with known values")
            if func in VIEWS and isinstance(args[0], FakeTensor):
                return view(func, args, kwargs)
            return func(*args, **kwargs)
        try:
            out = func(*args, **kwargs)  # fake, to find out its size
        except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException):
            if not all(self.keeps(t) for t in given):
                raise
            out = None  # at most slightly larger than the arguments, which are small
        if not all(self.keeps(t) for t in (*given, *tensors_in(out))):
            return out
        with no_dispatch():
            return func(*args, **kwargs)


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
