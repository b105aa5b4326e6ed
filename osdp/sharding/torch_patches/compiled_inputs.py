"""Compiled code that is given a tensor of tensor parallelism still in flight: its gradient is not lost.

Note [Inputs in flight]
torch's styles return what a collective is still sending as an AsyncCollectiveTensor. AOTAutograd (torch 2.12 on) puts what
was waited for in its place before it traces, and so forgets that the input needs a gradient: the compiled backward then has
none for it, and what comes before, an embedding, gets a part of its gradient only, with no error. FSDP2 over the same
tensor parallelism trains so, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from osdp.sharding.torch_patches.replaced import replace


def install_inputs_in_flight() -> None:
    """With the first model whose parameters are divided over tensor parallelism."""
    from torch._functorch import aot_autograd

    if hasattr(aot_autograd, "process_inputs"):
        replace(aot_autograd, "process_inputs", _keeps_gradients)


def _keeps_gradients(process: Callable[..., Any]) -> Callable[..., Any]:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    @functools.wraps(process)
    def process_inputs(flat_args: list[Any], config: Any, fake_mode: Any, *args: Any, **kwargs: Any) -> Any:
        needed = [
            i for i, a in enumerate(flat_args) if isinstance(a, AsyncCollectiveTensor) and a.requires_grad
        ]
        found = process(flat_args, config, fake_mode, *args, **kwargs)
        inputs = found[0] if isinstance(found, tuple) else found
        for i in needed:
            if not inputs[i].requires_grad:
                with fake_mode, torch.enable_grad():
                    inputs[i] = inputs[i].detach().requires_grad_().clone()  # no leaf, as the input is none
        return found

    return process_inputs
