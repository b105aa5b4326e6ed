"""Buffers that several stages have: those of the model itself, and of what blocks of several stages share.

Each stage keeps its own. Written to by what every stage computes (a counter in the model's own forward) they stay alike; by
modules of several stages (the statistics of one batch norm in all blocks) each has what its own calls made of it, which is
another number than one process has, in evaluation and in checkpoints. The first step compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from osdp.base.tensor_parallel import local_part


def names_of_buffers(model: nn.Module) -> dict[str, str]:
    """By the name of a buffer: the first name of the same one. Of a whole model."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(b), name) for name, b in model.named_buffers(remove_duplicate=False)}


def values_of_buffers(model: nn.Module, names: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """By its first name in the whole model, what tells the values of each buffer of a stage."""
    found = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        own = local_part(buffer.detach())
        if name in names and own.layout is torch.strided and not own.is_meta and own.numel():
            numbers = (own.abs() if own.is_complex() else own).double().flatten()
            found[names[name]] = (numbers.sum().item(), numbers.norm().item())
    return found


def buffer_apart(stages: Sequence[Mapping[str, tuple[float, float]]]) -> str:
    """The first buffer of which two stages have other values, or ""."""
    known: dict[str, str] = {}
    for values in stages:
        for name, value in values.items():
            if known.setdefault(name, repr(value)) != repr(value):  # NaN is like NaN
                return name
    return ""
