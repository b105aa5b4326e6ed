"""Modules that torch.compile has compiled, and functions that it should not compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Whether the module's call is compiled, by module.compile() or torch.compile(module)."""
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def unwrapped(model: nn.Module) -> nn.Module:
    """The module that was given to fully_shard: the one inside of torch.compile(model) and
    osdp.FullyShardedDataParallel (of all wrappers, if nested)."""
    model = getattr(model, "_orig_mod") if type(model).__name__ == "OptimizedModule" else model  # noqa: B009
    return getattr(model, "_osdp_wrapped", model)


@contextlib.contextmanager
def not_compiled(model: nn.Module) -> Iterator[None]:
    """Context in which the compiled parts of `model` run uncompiled."""
    if not any(is_compiled(module) for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def not_a_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make Dynamo skip `function` when it is called from uncompiled code; functions that it calls are still
    compiled."""
    from torch._dynamo.eval_frame import skip_code

    skip_code(function.__code__)
    return function
