"""Runs a model without permanent changes to it, to random number generators or to what it is trained with afterwards.

Describing, sharding and copying make tensors that are trained later, also where the script is inside of
torch.inference_mode(): a tensor made there can neither be written to nor saved for backward outside of it.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Context that restores buffers and attributes of every module afterwards."""
    modules = list(model.modules())
    attributes = [dict(vars(m)) for m in modules]
    buffers = [dict(m._buffers) for m in modules]
    values = {id(b): b.detach().clone() for held in buffers for b in held.values() if b is not None}
    try:
        yield
    finally:
        for module, was, held in zip(modules, attributes, buffers, strict=True):
            vars(module).clear()
            vars(module).update(was)
            module._buffers.clear()
            module._buffers.update(held)
            for buffer in held.values():
                # Not by `_version`, which BatchNorm's kernels do not increment.
                if buffer is not None and not torch.equal(buffer, values[id(buffer)]):
                    with torch.no_grad():
                        buffer.copy_(values[id(buffer)])


@contextmanager
def generators_kept(device: torch.device | None = None) -> Iterator[None]:
    """Context that afterwards restores Python's, NumPy's (if loaded) and torch's generators (CPU's and
    `device`'s).
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    kind = "cpu" if device is None or device.type == "meta" else device.type
    index = device.index or 0 if device is not None else 0
    with torch.random.fork_rng(
        [] if kind == "cpu" else [index], device_type="cuda" if kind == "cpu" else kind
    ):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


_P = ParamSpec("_P")
_R = TypeVar("_R")


def outside_inference_mode(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def outside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # inference_mode(False) would turn gradients on inside no_grad, too.
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return outside
