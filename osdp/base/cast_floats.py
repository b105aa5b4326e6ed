"""Casts tensors in containers to another dtype, or moves them to another device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from osdp.base.tensor_trees import map_tensors


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
    """`value` with its floating-point tensors cast, in the containers of `map_tensors`."""

    def cast(t: Any) -> Any:
        floating = (t if isinstance(t, torch.Tensor) else t.data).is_floating_point()
        return t.to(dtype) if floating else t

    return map_tensors(cast, value, (PackedSequence,))


def to_device(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on `device`, in the same containers. Those on the meta device stay there."""

    def moved(t: Any) -> Any:
        here = t.device if hasattr(t, "device") else t.data.device
        return t if here == device or here.type == "meta" else t.to(device)

    return map_tensors(moved, value, (PackedSequence,))
