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


def _tells_stage(clear: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(clear)
    def clear_runtime_states(self: Any) -> None:
        clear(self)
        if sharded_of(self.submod) is not None:
            function_of("PipelineStage")(self)

    return clear_runtime_states
