"""Casts tensors in containers to another dtype, or moves them to another device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class CastInputs:
    """A forward pre-hook (`with_kwargs`) that casts the arguments."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: object, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return cast_floats(args, self.dtype), cast_floats(kwargs, self.dtype)


class MoveInputs:
    """A forward pre-hook (`with_kwargs`) that moves the arguments to `device`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, module: object, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return to_device(args, self.device), to_device(kwargs, self.device)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors cast, in arbitrarily nested tuples, lists, dicts and
    dataclasses."""
    import torch

    def cast(t: Any) -> Any:
        floating = (t if isinstance(t, torch.Tensor) else t.data).is_floating_point()
        return t.to(dtype) if floating else t

    return _mapped(value, cast)


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on `device`, in the same containers. Those on the meta device stay there."""

    def moved(t: Any) -> Any:
        here = t.device if hasattr(t, "device") else t.data.device
        return t if here == device or here.type == "meta" else t.to(device)

    return _mapped(value, moved)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    import torch

    if isinstance(value, (torch.Tensor, torch.nn.utils.rnn.PackedSequence)):
        return change(value)
    # First: transformers' outputs are dataclasses, too, whose items set their fields.
    if isinstance(value, Mapping):
        items = {key: _mapped(item, change) for key, item in value.items()}
        return items if type(value) is dict else _like(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, _mapped(getattr(value, field.name), change))
        return changed
    if isinstance(value, (tuple, list)):
        found = [_mapped(item, change) for item in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value


def _like(value: Any, cast: dict[Any, Any]) -> Any:
    """A copy of a mapping that is not a dict, with other values."""
    changed = copy.copy(value)
    for key, item in cast.items():
        changed[key] = item
    return changed
