"""Tells the stages of a pipeline that a schedule runs them.

Note [Stages of a schedule]
torch's stages reduce once a step, and keep parameters gathered over micro-batches, for instances of FSDPModule only. A model
that was sharded by a plan has kept its class until then, so its stages would be reduced in every micro-batch. torch offers
no hook for a stage. Schedules of one stage and of several begin a step alike, by clearing what their stages keep of the one
before: then the model is sharded in whatever order it, the stage and the schedule were made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.pipelining import stage

from osdp.base.later_methods import function_of
from osdp.sharding.sharded_model import sharded_of
from osdp.sharding.torch_patches.replaced import replace


def install_stages() -> None:
    replace(stage._PipelineStageBase, "clear_runtime_states", _tells_stage)
    if hasattr(stage.PipelineStage, "_post_metadata_inference_cleanup"):
        replace(stage.PipelineStage, "_post_metadata_inference_cleanup", _keeps_gradients)
    for name in ("_prepare_forward_infra", "_prepare_backward_infra"):
        if hasattr(stage.PipelineStage, name):
            replace(stage.PipelineStage, name, _keeps_values)


def _tells_stage(clear: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(clear)
    def clear_runtime_states(self: Any) -> None:
        clear(self)
        if sharded_of(self.submod) is not None:
            function_of("PipelineStage")(self)

    return clear_runtime_states


def _keeps_gradients(cleanup: Callable[..., None]) -> Callable[..., None]:
    """Where an evaluation came between steps, or sequences have another length, torch learns anew what passes, and then
    drops all gradients of FSDP modules, since a loss that runs backward itself has made some: also those of earlier
    steps."""

    @functools.wraps(cleanup)
    def post_metadata_inference_cleanup(self: Any) -> None:
        cleanup(self)
        for parameter, gradient in vars(self).pop(_GRADIENTS, ()):
            parameter.grad = gradient

    return post_metadata_inference_cleanup


_GRADIENTS = "_osdp_gradients"  # attribute of a stage while torch learns what passes


def _keeps_values(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """torch then runs the stage on values that nobody gave: a batch norm would learn them, and gradients get theirs."""

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(self):
            return prepare(self, *args, **kwargs)
        if _GRADIENTS not in vars(self):
            vars(self)[_GRADIENTS] = [(p, p.grad) for p in self.submod.parameters()]
            for parameter in self.submod.parameters():
                parameter.grad = None
        with _buffers_kept(self.submod):
            return prepare(self, *args, **kwargs)

    return prepared


def _is_ours(stage: Any) -> bool:
    return any(sharded_of(module) is not None for module in stage.submod.modules())


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Context in which buffers are copies: what autograd saves of them stays as it was."""
    held = [(m, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    for holder, name, buffer in held:
        holder._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for holder, name, buffer in held:
            holder._buffers[name] = buffer
