"""torch.amp.GradScaler with sharded models: an infinity on one rank makes all ranks skip the step.

torch's scaler looks for infinities in this rank's gradients. For sharded parameters these are only its rows:
one rank would skip a step that the others take, and the ranks would diverge. So the result is exchanged in
one all-reduce of one number per model and step, on the caller's process group. An infinity in an expert's
gradient is on the ranks of its group alone, so a model with parts over other ranks exchanges the result even if
its own parameters are not sharded; and so do the stages of a pipeline that osdp.parallelize made, since one that skipped
alone would leave the others' weights a step ahead and scale by another number. torch's and OSDP's ShardedGradScaler do
this themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.amp import grad_scaler
from torch.optim import Optimizer

from osdp.base.warned import warn
from osdp.sharding.nested_models import groups_with_parts
from osdp.sharding.norm_over_stages import stages_of
from osdp.sharding.sharded_parameters import sharded_parameters
from osdp.sharding.torch_patches.replaced import replace


def install_scaler() -> None:
    scaler = grad_scaler.GradScaler
    if not hasattr(scaler, "_unscale_grads_"):
        warn(
            "OSDP does not recognise this torch's GradScaler, which could skip a step on one rank "
            "only: use osdp.ShardedGradScaler.",
        )
        return
    replace(scaler, "_unscale_grads_", _agreeing)


def _agreeing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def unscale(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> dict[Any, Tensor]:
        found: dict[Any, Tensor] = original(self, optimizer, *args, **kwargs)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        cut = sharded_parameters(parameters)
        groups = {c.sharded.group: None for c in cut.values()}
        groups |= {c.layout.mesh.get_group(0): None for c in cut.values() if c.layout is not None}
        stages = stages_of(parameters)
        if stages and not found:  # all of this stage is frozen
            found = {p.device: torch.zeros((), device=p.device) for p in parameters}
        for group in groups | dict.fromkeys([*groups_with_parts(parameters), *stages]):
            for infinite in found.values():
                dist.all_reduce(infinite, dist.ReduceOp.MAX, group=group)
        return found

    return unscale
