"""What torch.distributed.pipelining reads of FSDP2's private state, answered for modules that OSDP has sharded.

A stage whose module is an FSDPModule switches synchronisation off for each micro-batch's backward. At the end of a step it
reads `fully_shard.state(module)`, lets each of the state's parameter groups reduce, and calls
`_root_post_backward_final_callback`. Here there are no parameter groups, and that call reduces what was kept.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import ref

from torch import nn
from torch.distributed._composable.contract import STATE_KEY
from torch.distributed.fsdp import fully_shard as torchs_fully_shard

from osdp.sharding.parts import with_parts
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

    def __deepcopy__(self, memo: dict[int, Any]) -> PipelineState:
        module = self._module()
        assert module is not None  # it is being copied
        return PipelineState(memo.get(id(module), module))


def answer_pipelining(module: nn.Module) -> None:
    """`torch.distributed.fsdp.fully_shard.state(module)` returns a PipelineState from now on."""
    function = getattr(torchs_fully_shard, "__wrapped__", torchs_fully_shard)
    module.__dict__.setdefault(STATE_KEY, {})[function] = PipelineState(module)
