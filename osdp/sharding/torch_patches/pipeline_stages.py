"""Tells the stages of a pipeline schedule that a schedule has them.

Note [Stages of a schedule]
torch's stages reduce once a step, and keep parameters gathered over micro-batches, for instances of FSDPModule only. A model
that was sharded by a plan has kept its class until then, so its stages would be reduced in every micro-batch. torch offers
no hook for a stage; and the constructors of schedules, unlike those of stages, come after the model was sharded in every
order of calls in use (torchtitan makes its stages first).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import schedules

from osdp.base.later_methods import function_of
from osdp.sharding.sharded_model import sharded_of
from osdp.sharding.torch_patches.replaced import replace


def install_stages() -> None:
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        replace(kind, "__init__", _tells_stages)


def _tells_stages(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for stage in [self._stage] if hasattr(self, "_stage") else self._stages:
            if sharded_of(stage.submod) is not None:
                function_of("PipelineStage")(stage)

    return __init__
