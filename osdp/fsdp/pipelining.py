"""What torch.distributed.pipelining reads of FSDP2's private state, answered for modules that OSDP has sharded.

A stage whose module is an FSDPModule switches synchronisation off for each micro-batch's backward. At the end of a step it
reads `fully_shard.state(module)`, lets each of the state's parameter groups reduce, and calls
`_root_post_backward_final_callback`. Here there are no parameter groups, and that call reduces what was kept, and reshards.
"""

from __future__ import annotations

import sys
from types import FrameType, SimpleNamespace
from typing import Any
from weakref import ref

from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.fsdp import fully_shard as torchs_fully_shard

from osdp.errors import ShardingError
from osdp.sharding.nested_models import with_parts
from osdp.sharding.sharded_model import sharded_of


class PipelineState:
    """The state of one module."""

    _fsdp_param_groups = ()

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)
        self._state_ctx = SimpleNamespace(all_states=())

    def _root_post_backward_final_callback(self) -> None:
        module = self._module()
        if module is not None and sharded_of(module) is not None:
            for _, sharded in with_parts(module):
                sharded.runtime.reduce_kept()
                sharded.runtime.reshard(range(len(sharded.tree.known)))

    def __deepcopy__(self, memo: dict[int, Any]) -> PipelineState:
        module = self._module()
        assert module is not None  # it is being copied
        return PipelineState(memo.get(id(module), module))


def refuse_split_backward(caller: FrameType | None) -> None:
    """Raises ShardingError if `caller` runs a schedule that computes the gradients of inputs and of weights apart
    (zero-bubble schedules): torch assigns the weights' to parameters that are this rank's rows then. Every rank's schedule
    unshards before it sends anything, so all ranks raise it."""
    schedules: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    if schedules is None or caller is None:
        return
    schedule = caller.f_locals.get("self")
    if not isinstance(schedule, schedules._PipelineScheduleRuntime):
        return
    split = {schedules.BACKWARD_INPUT, schedules.BACKWARD_WEIGHT}
    actions = [a for rank in (schedule.pipeline_order_with_comms or {}).values() for a in rank]
    inside = [s for a in actions for s in (a, *(a.sub_actions or ()))]
    if any(a.computation_type in split for a in inside):
        raise ShardingError(
            f"{type(schedule).__name__} splits backward into gradients of inputs and gradients of weights (zero bubble), "
            "which is not supported for sharded stages, as with torch's fully_shard. Use ScheduleInterleaved1F1B, "
            "ScheduleLoopedBFS, Schedule1F1B or ScheduleGPipe"
        )


def answer_pipelining(module: nn.Module) -> None:
    """`torch.distributed.fsdp.fully_shard.state(module)` returns a PipelineState from now on."""
    function = getattr(torchs_fully_shard, "__wrapped__", torchs_fully_shard)
    module.__dict__.setdefault(STATE_KEY, {})[function] = PipelineState(module)
