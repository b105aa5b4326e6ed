"""Steps of optimizers that cannot mean what they do in one process, told before they change anything."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from osdp.errors import ShardingError


@functools.cache
def watch_steps() -> None:
    """Once per process."""
    register_optimizer_step_pre_hook(_refuse_unreduced)


def _refuse_unreduced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    from osdp.sharding import sharded_models

    for model, sharded in sharded_models():
        index = sharded.runtime.unreduced()
        if index is None:
            continue
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) in stepped for p in model.parameters()):
            raise ShardingError(
                f"rank {sharded.runtime.rank}: {type(optimizer).__name__}.step() with gradients that osdp.no_sync has kept "
                f"and no backward has averaged yet (parameter {sharded.names()[index]!r}): ranks would step apart. Run the "
                "last micro-batch's backward outside of no_sync, then step"
            )
