"""Tells the stages of a pipeline that a schedule runs them.

Note [Stages of a schedule]
torch's stages reduce once a step, and keep parameters gathered over micro-batches, for instances of FSDPModule only. A model
that was sharded by a plan has kept its class until then, so its stages would be reduced in every micro-batch. torch offers
no hook for a stage. Schedules of one stage and of several begin a step alike, by clearing what their stages keep of the one
before: then the model is sharded in whatever order it, the stage and the schedule were made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import stage

from osdp.base.later_methods import function_of
from osdp.sharding.sharded_model import sharded_of
from osdp.sharding.torch_patches.replaced import replace


def install_stages() -> None:
    replace(stage._PipelineStageBase, "clear_runtime_states", _tells_stage)
    if hasattr(stage.PipelineStage, "_post_metadata_inference_cleanup"):
        replace(stage.PipelineStage, "_post_metadata_inference_cleanup", _keeps_gradients)


def _tells_stage(clear: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(clear)
    def clear_runtime_states(self: Any) -> None:
        clear(self)
        if sharded_of(self.submod) is not None:
            function_of("PipelineStage")(self)

    return clear_runtime_states


def _keeps_gradients(cleanup: Callable[..., None]) -> Callable[..., None]:
    """Where an evaluation came between steps, or sequences have another length, torch learns anew what passes, and drops
    all gradients of FSDP modules, also those that earlier steps accumulated."""

    @functools.wraps(cleanup)
    def post_metadata_inference_cleanup(self: Any) -> None:
        ours = any(sharded_of(module) is not None for module in self.submod.modules())
        held = [(p, p.grad) for p in self.submod.parameters()] if ours else []
        cleanup(self)
        for parameter, gradient in held:
            parameter.grad = gradient

    return post_metadata_inference_cleanup
