"""Says once that a training batch is larger than the one that the plan's memory and time are for."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from osdp.base.compiled_modules import not_a_frame
from osdp.base.tensor_trees import batch_of
from osdp.base.warned import warn
from osdp.plan.plan import Plan


def watch_batch(model: nn.Module, plan: Plan) -> None:
    """Install the check where the plan was searched: plans made by hand are for no batch. Smaller batches, as an epoch's
    last, and those without gradients take less than planned."""
    if plan.searched is not None and os.environ.get("LOCAL_RANK", "0") == "0":
        watch = _Watch(plan.batch_size)
        model.register_forward_pre_hook(watch.before, with_kwargs=True)


class _Watch:
    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.told = False
        not_a_frame(_Watch.before)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.told or torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        batch = batch_of((args, kwargs))
        if batch > self.planned:
            self.told = True
            warn(
                f"this batch has {batch} samples and the plan is for {self.planned} a rank: it needs more memory than was "
                f"planned, and another plan may be faster. Plan for it: osdp.search(..., batch_size={batch})"
            )
