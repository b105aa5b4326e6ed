"""Runs a model without permanent changes to it, to random number generators or to what it is trained with afterwards.

Describing, sharding and copying make tensors that are trained later, also where the script is inside of
torch.inference_mode(): a tensor made there can neither be written to nor saved for backward outside of it.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Context that restores buffers and attributes of every module afterwards: also those tensors, containers and generators
    of random numbers among them that a forward changes in place (a cache, a counter in a dict)."""
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    known: set[int] = set()
    restore = [put_back for _, was in attributes for each in was.values() for put_back in _kept(each, known)]
    try:
        yield
    finally:
        for module, was in attributes:
            vars(module).clear()
            vars(module).update(was)
        for put_back in restore:
            put_back()


def _kept(value: Any, known: set[int]) -> Iterator[Callable[[], object]]:
    """Functions that put a value back as it is now, and what is in it."""
    if id(value) in known:
        return
    known.add(id(value))
    if isinstance(value, torch.Tensor):
        if not isinstance(value, nn.Parameter) and value.layout is torch.strided and not value.is_meta:
            yield functools.partial(_write_back, value, value.detach().clone())
    elif type(value) in (list, dict, OrderedDict, set, deque):
        of_dict = isinstance(value, dict)
        items = list(value.items() if of_dict else value)
        yield functools.partial(_refill, value, items)
        for item in items:
            yield from _kept(item[1] if of_dict else item, known)
    elif isinstance(value, torch.Generator):
        yield functools.partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random):
        yield functools.partial(value.setstate, value.getstate())


def _write_back(tensor: torch.Tensor, was: torch.Tensor) -> None:
    if not torch.equal(tensor, was):  # not by `_version`, which BatchNorm's kernels do not increment
        with torch.no_grad():
            tensor.copy_(was)


def _refill(container: Any, items: list[Any]) -> None:
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(items)


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
