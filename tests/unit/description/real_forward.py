"""What a real forward on the CPU keeps, measured in two ways that share nothing with `describe`."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from osdp import _C


def saved_bytes(model: nn.Module, sample: Mapping[str, Any]) -> int:
    """Bytes of the storages that autograd saves, each once, less parameters, buffers and the sample."""
    there = {
        t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), *_tensors(sample))
    }
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved.setdefault(storage.data_ptr(), storage)  # kept alive: no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(**sample)
    del output
    return sum(storage.nbytes() for address, storage in saved.items() if address not in there)


def live_bytes(model: nn.Module, sample: Mapping[str, Any], with_output: bool = False) -> int:
    """What torch's CPU allocator holds more of after a forward than before; without `with_output`, less the
    output's own tensors.

    The output of a model that computes its loss is not saved by anything, apart from a few bytes.
    """
    _C.memory_meter_install()
    output = model(**sample)  # what is allocated once, is: caches, tables made at the first call
    del output
    gc.collect()
    before = _C.memory_live_bytes()
    output = model(**sample)
    live = _C.memory_live_bytes() - before
    if with_output:
        return live
    return live - sum({t.untyped_storage().data_ptr(): t.nbytes for t in _tensors(output)}.values())


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    values = (
        tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (tuple, list)) else [tree]
    )
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (Mapping, tuple, list)):
            yield from _tensors(value)
