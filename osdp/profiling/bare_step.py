"""bare_step_s: how long the model's own step takes at this moment."""

from __future__ import annotations

import statistics
from typing import Any

from torch import nn

from osdp.base.module_state import untouched
from osdp.base.rng_state import generators_kept
from osdp.profiling.operator_times import run_step

_REPEATS = 7


def bare_step_s(model: nn.Module, *args: Any, **kwargs: Any) -> float:
    """Median seconds of a forward and a backward of a model that is not sharded, on this rank: no communication, no
    optimizer, no loss that is computed outside of the model. The model stays as it is.

    Measured on all ranks at once, as `osdp.profile` has it, and before `fully_shard`. `osdp.report(model, bare_step_s=...)`
    then says what has become of the machine since it was profiled.

    >>> now = osdp.bare_step_s(model, tokens)  # as many samples as plan.batch_size
    """
    device = next(model.parameters()).device
    with untouched(model), generators_kept(device):
        run_step(model, args, kwargs, device)  # warms up
        return statistics.median(sum(run_step(model, args, kwargs, device)) for _ in range(_REPEATS))
