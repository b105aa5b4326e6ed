"""Runs a model without permanent changes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
