"""What torch.distributed.pipelining reads of FSDP2's private state, answered for modules that OSDP has sharded.

A stage whose module is an FSDPModule switches synchronisation off for each micro-batch's backward. At the end of a step it
reads `fully_shard.state(module)`, lets each of the state's parameter groups reduce, and calls
`_root_post_backward_final_callback`. Here there are no parameter groups, and that call reduces what was kept, and reshards.

Note [Micro-batches of a stage]
torch would reduce, and free what is gathered, after the last backward. Here the last backward of a step, which the stage's
number of micro-batches tells, does both while it computes; if the count is ever wrong, what is left is reduced at the end.
  Where the stage has a plan that was searched for it, the plan decides what stays: units of modes that are gathered anew for
backward (FULL_SHARD, HYBRID_SHARD) are gathered, and their gradients reduced, in every micro-batch, since the plan's memory
has no room for more. What a rank holds throughout (SHARD_GRAD_OP, NO_SHARD) is gathered and reduced once a step. Without
such a plan everything stays gathered after a backward, and is reduced once, as with FSDP2.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType, SimpleNamespace
from typing import Any
from weakref import ref

from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.fsdp import fully_shard as torchs_fully_shard

from osdp.errors import ShardingError
from osdp.plan.plan_fields import parameters_with
from osdp.sharding.nested_models import with_parts
from osdp.sharding.sharded_model import Sharded, sharded_of

_ATTRIBUTE = "_osdp_pipeline_state"


class PipelineState:
    """The state of one module."""

    _fsdp_param_groups = ()

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)
        self._state_ctx = SimpleNamespace(all_states=())
        self._stage: ref[Any] | None = None
        self._backwards = 0  # of this step that have begun

    def begin_step(self, stage: Any) -> bool:
        """Whether it is the first one that the stage runs."""
        first = self._stage is None or self._stage() is not stage
        self._stage, self._backwards = ref(stage), 0
        return first

    @property
    def in_stage(self) -> bool:
        return self._stage is not None and self._stage() is not None

    def begin_backward(self) -> None:
        self._backwards += 1

    @property
    def last_backward(self) -> bool:
        """Whether the backward that begins is the step's last: Note [Micro-batches of a stage]."""
        stage = self._stage() if self._stage is not None else None
        return stage is not None and self._backwards == stage.chunks

    def _root_post_backward_final_callback(self) -> None:
        self._backwards = 0
        module = self._module()
        if module is not None and sharded_of(module) is not None:
            for _, sharded in with_parts(module):
                sharded.runtime.reduce_kept()
                sharded.runtime.reshard(range(len(sharded.tree.known)))

    def __deepcopy__(self, memo: dict[int, Any]) -> PipelineState:
        module = self._module()
        assert module is not None  # it is being copied
        return PipelineState(memo.get(id(module), module))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())  # what is loaded is in no stage


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


def from_schedule(caller: FrameType | None) -> bool:
    """Whether `caller` is torch's schedule, and not a script."""
    schedules: Any = sys.modules.get("torch.distributed.pipelining.schedules")
    return (
        caller is not None
        and schedules is not None
        and isinstance(caller.f_locals.get("self"), schedules._PipelineSchedule)
    )


def staying(parameters: Iterable[nn.Parameter], sharded: Sharded | None) -> list[nn.Parameter]:
    """Those that a rank holds throughout a step of `sharded`, a stage: Note [Micro-batches of a stage]."""
    parameters = list(parameters)
    if sharded is None or sharded.plan.searched is None or sharded.plan.searched.stage is None:
        return parameters
    anew = parameters_with(sharded.plan, "sharded") - parameters_with(sharded.plan, "kept")
    index, planned = sharded.tree.index, dict(enumerate(sharded.planned))  # without what was added later
    return [p for p in parameters if planned.get(index.get(id(p), -1)) not in anew]


def state_of(module: nn.Module) -> PipelineState:
    """Where `torch.distributed.fsdp.fully_shard.state(module)` finds it from now on. torch's marks are put on anew when the
    module is sharded anew, so the state has a place of its own beside them."""
    held = vars(module)
    if held.get(_ATTRIBUTE) is None:
        held[_ATTRIBUTE] = PipelineState(module)
    state: PipelineState = held[_ATTRIBUTE]
    held.setdefault(STATE_KEY, {})[getattr(torchs_fully_shard, "__wrapped__", torchs_fully_shard)] = state
    return state
