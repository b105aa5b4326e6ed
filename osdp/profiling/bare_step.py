"""bare_step_s: the present time of the model's step without sharding."""

from __future__ import annotations

import statistics
from typing import Any

from torch import nn

from osdp.base.kept_state import generators_kept, untouched
from osdp.profiling.operator_times import run_step

_REPEATS = 7


def bare_step_s(model: nn.Module, *args: Any, **kwargs: Any) -> float:
    """Median seconds of a forward and a backward of a model that is not sharded, on this rank: without
    communication, optimizer, and losses computed outside of the model. The model does not change.

    Call it on all ranks at once, like `osdp.profile`, and before `fully_shard`. `osdp.report(model,
    bare_step_s=...)` then compares the machine's speed with the profile.

    >>> now = osdp.bare_step_s(model, tokens)  # as many samples as plan.batch_size
    """
    device = next(model.parameters()).device
    with untouched(model), generators_kept(device):
        run_step(model, args, kwargs, device)  # warms up
        return statistics.median(sum(run_step(model, args, kwargs, device)) for _ in range(_REPEATS))
