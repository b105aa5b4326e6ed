"""describe_once: `osdp.describe`, asked once in a process for models that look alike: most of a short test would be that."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import osdp

_descriptions: dict[Any, osdp.ModelDescription] = {}


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.device_mesh} {tensor.placements}" if isinstance(tensor, DTensor) else ""


def describe_once(model: nn.Module, *inputs: Any, **options: Any) -> osdp.ModelDescription:
    """For a model whose forward depends on nothing but its class, its modules, its tensors and whether it trains."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    facts = tuple(
        (name, first.setdefault(id(t), name), t.shape, t.dtype, t.device, t.requires_grad, _layout(t))
        for name, t in tensors
    )
    key = (
        type(model),
        repr(model),
        facts,
        tuple((m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()),
        tuple((x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else repr(x) for x in inputs),
        repr(options),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )
    if key not in _descriptions:
        _descriptions[key] = osdp.describe(model, *inputs, **options)
    return _descriptions[key]
