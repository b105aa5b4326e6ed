"""What a module is: compiled, wrapped, sharded, a convolution, transformers' Conv1D.

The registry of sharded models is in this package so that `describe` need not load the runtime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

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


# Model -> its osdp.sharding.sharded_model.Sharded, for as long as the model lives.
HANDLES: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()


def is_sharded(model: nn.Module) -> bool:
    """Whether `model`, or the module that it compiles or wraps, was given to `fully_shard`."""
    return unwrapped(model) in HANDLES


_CHECKPOINT_WRAPPER = "_checkpoint_wrapped_module."


def without_wrappers(name: str) -> str:
    """`name` of `named_parameters()` as state dicts have it: torch's checkpoint_wrapper takes its own part out of them.

    >>> without_wrappers("blocks.0._checkpoint_wrapped_module.up.weight")
    'blocks.0.up.weight'
    """
    return name.replace(_CHECKPOINT_WRAPPER, "")


def is_convolution(module: nn.Module) -> TypeGuard[nn.Conv1d | nn.Conv2d | nn.Conv3d]:
    """Whether it is a convolution of torch. Subclasses may compute something else."""
    return type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D (GPT-2), an nn.Linear whose weight is stored as [in, out]. Subclasses may compute
    something else. transformers need not be installed."""
    cls = type(module)
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"
