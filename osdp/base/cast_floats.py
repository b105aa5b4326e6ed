"""Casts tensors in containers to another dtype."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class CastInputs:
    """A forward pre-hook (`with_kwargs`) that casts the arguments."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: object, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return cast_floats(args, self.dtype), cast_floats(kwargs, self.dtype)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors cast, in arbitrarily nested tuples, lists, dicts and
    dataclasses."""
    import torch

    if isinstance(value, (torch.Tensor, torch.nn.utils.rnn.PackedSequence)):
        floating = (value if isinstance(value, torch.Tensor) else value.data).is_floating_point()
        return value.to(dtype) if floating else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, cast_floats(getattr(value, field.name), dtype))
        return changed
    if isinstance(value, Mapping):
        cast = {key: cast_floats(item, dtype) for key, item in value.items()}
        return cast if type(value) is dict else _like(value, cast)
    if isinstance(value, (tuple, list)):
        items = [cast_floats(item, dtype) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _like(value: Any, cast: dict[Any, Any]) -> Any:
    """A copy of a mapping that is not a dict, with other values."""
    changed = copy.copy(value)
    for key, item in cast.items():
        changed[key] = item
    return changed
