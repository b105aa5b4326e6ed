"""Describes a model by a method of it, such as Lightning's `training_step`, instead of its forward."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from osdp.errors import DescribeError


@contextmanager
def method_as_forward(model: nn.Module, name: str | None) -> Iterator[None]:
    """Context in which a call of `model` is one of `model.name(...)`; calls of the model inside of it are its forward's, as
    ever. Nothing changes if `name` is None.

    The class changes, not the object: a copy of the model behaves alike, and its method is the copy's. Raises
    DescribeError if the object has a `forward`, or method of that name, of its own.
    """
    if name is None:
        yield
        return
    kind = type(model)
    if own := [each for each in (name, "forward") if each in vars(model) or not hasattr(kind, each)]:
        raise DescribeError(
            f"{own[0]} of this {kind.__name__} is the object's own, not its class's, so a call of {name} cannot "
            "be traced on a copy: pass sample= to the wrap"
        )
    method = getattr(kind, name)
    inside: set[int] = set()

    @functools.wraps(method)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(self) in inside:
            return kind.forward(self, *args, **kwargs)
        inside.add(id(self))
        try:
            return getattr(self, name)(*args, **kwargs)
        finally:
            inside.remove(id(self))

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    model.__class__ = type(kind.__name__, (kind,), {**names, "forward": forward})
    try:
        yield
    finally:
        model.__class__ = kind
