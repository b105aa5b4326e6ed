"""Modules and functions that torch.compile has compiled, or should not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's call is compiled: by module.compile(), or as what torch.compile(module) returned."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def unwrapped(model: nn.Module) -> nn.Module:
    """What fully_shard was given: the module inside of torch.compile(model) and of osdp.FullyShardedDataParallel (of all of
    them, where one wraps another)."""
    model = getattr(model, "_orig_mod") if type(model).__name__ == "OptimizedModule" else model  # noqa: B009
    return getattr(model, "_osdp_wrapped", model)


@contextlib.contextmanager
def not_compiled(model: nn.Module) -> Iterator[None]:
    """Within, what is compiled of `model` runs as if it were not."""
    if not any(is_compiled(module) for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def not_a_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Called from what is not compiled, `function` is not compiled either; what it calls is."""
    from torch._dynamo.eval_frame import skip_code

    skip_code(function.__code__)
    return function
