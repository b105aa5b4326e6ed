"""describe_once: `osdp.describe`, asked once in a run of the tests for models that look alike: most of a short test would
be that. What one rank of one test finds, others read from a folder (tests/conftest.py)."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import osdp

_descriptions: dict[Any, osdp.ModelDescription] = {}


def _layout(tensor: torch.Tensor) -> str:
    """Of a DTensor; with the shape of this rank's part, so that ranks whose parts are alike ask once."""
    if not isinstance(tensor, DTensor):
        return ""
    return f"{tensor.device_mesh} {tensor.placements} {tuple(tensor.to_local().shape)}"


def describe_once(model: nn.Module, *inputs: Any, **options: Any) -> osdp.ModelDescription:
    """For a model whose forward depends on nothing but its class, its modules, its tensors and whether it trains."""
    first: dict[int, str] = {}
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    facts = tuple(
        (name, first.setdefault(id(t), name), t.shape, t.dtype, t.device, t.requires_grad, _layout(t))
        for name, t in tensors
    )
    key = (
        f"{type(model).__module__}.{type(model).__qualname__}",
        repr(model),
        facts,
        tuple((m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()),
        tuple((x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else repr(x) for x in inputs),
        repr(options),
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )
    if key not in _descriptions:
        describe = functools.partial(osdp.describe, model, *inputs, **options)
        _descriptions[key] = _once_for_all(repr(key), describe)
    return _descriptions[key]


def _once_for_all(key: str, describe: Callable[[], osdp.ModelDescription]) -> osdp.ModelDescription:
    file = Path(os.environ["OSDP_TEST_DESCRIPTIONS"], hashlib.sha256(key.encode()).hexdigest())
    with open(f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the others wait for the first
        if not file.exists():
            file.write_bytes(pickle.dumps(describe()))
    found: osdp.ModelDescription = pickle.loads(file.read_bytes())
    return found
