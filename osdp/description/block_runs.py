"""Finds blocks in a row that may be alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from osdp.base.module_proxy import ModuleProxy

# Three that show the first's surroundings and two that are alike, and two before the end of the row.
LEAST = 6


def runs_of(model: nn.Module, blocks: Sequence[str]) -> list[list[str]]:
    """Consecutive blocks of one container, at least LEAST, whose parameters and buffers are their own and have the same
    names, shapes and dtypes.

    None has hooks in backward, which a trace of its forward does not show.
    """
    hooks = torch.nn.modules.module
    if len(blocks) < LEAST or hooks._global_backward_hooks or hooks._global_backward_pre_hooks:
        return []
    modules: Counter[int] = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    tensors: Counter[int] = Counter(
        id(t)
        for m in model.modules()
        for t in (*m._parameters.values(), *m._buffers.values())
        if t is not None
    )
    runs: list[list[str]] = []
    last: Any = None
    for name in blocks:
        signature = _signature(name, model.get_submodule(name), modules, tensors)
        if signature is None or signature != last:
            runs.append([])
        runs[-1].append(name)
        last = signature
    return [run for run in runs if len(run) >= LEAST]


def _signature(name: str, block: nn.Module, modules: Counter[int], tensors: Counter[int]) -> Any:
    """What blocks in a row have in common; None if they may not be compared."""
    parts: list[Any] = [name.rpartition(".")[0]]
    for path, module in block.named_modules():
        hooks = module._backward_hooks or module._backward_pre_hooks
        if modules[id(module)] > 1 or hooks or isinstance(module, ModuleProxy):
            return None
        parts.append((path, type(module)))
    for path, tensor in own_tensors(block):
        if tensors[id(tensor)] > 1:
            return None
        parts.append((path, type(tensor), *metadata(tensor)))
    return tuple(parts)


def own_tensors(block: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters and buffers of the block, with their names in it."""
    return [*block.named_parameters(), *block.named_buffers()]


def metadata(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a forward can see of a tensor without its values, and what autograd needs."""
    if tensor.layout is not torch.strided:
        return (tensor.layout, id(tensor))
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.dtype,
        tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device,
        tensor.requires_grad,
        tensor.is_leaf,
        tensor._is_view(),
        torch._C._dispatch_keys(tensor).raw_repr(),
    )
