"""All ranks begin with rank 0's values.

`osdp.fully_shard` gives each group of data parallelism its first rank's. A parameter that tensor parallelism does not divide
(a norm) is held whole by all of its ranks, and each trains its own: begun from other values (a seed that depends on the
rank) they would stay different models, and no gradient tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from osdp.errors import InvalidProblemError
from osdp.plan.parallel_plan import ParallelPlan
from osdp.ranks.rank_group import Together, first_unlike


def check_values(
    model: nn.Module, plan: ParallelPlan, options: Mapping[str, Any], together: Together
) -> None:
    """Raises InvalidProblemError for a model that has values on some ranks alone, or that several stages would initialise.
    Collective."""
    held = [*model.named_parameters(), *model.named_buffers()]
    missing = together.all(sorted(name for name, t in held if t.is_meta))
    if other := first_unlike(missing):
        name = min(set(missing[0]) ^ set(missing[other]))
        raise InvalidProblemError(
            f"{name!r} is on the meta device on {'rank 0' if name in missing[0] else f'rank {other}'}, and not on "
            f"{f'rank {other}' if name in missing[0] else 'rank 0'}: osdp.parallelize needs values on all ranks, or on none"
        )
    if missing[0] and len(plan.stages) > 1 and options.get("initialise", True) is not False:
        raise InvalidProblemError(
            f"{missing[0][0]!r} is on the meta device, and {len(plan.stages)} stages would each draw the same random "
            "numbers: build the model with values, or pass initialise=False and load a checkpoint"
        )


def take_first(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give the model's parameters and buffers the values of the mesh's first rank. Collective."""
    if mesh.size() == 1:
        return
    with torch.no_grad():
        for value in {id(t): t for t in (*model.parameters(), *model.buffers()) if not t.is_meta}.values():
            sent = value.detach().contiguous()
            if sent.numel():
                dist.broadcast(sent.view(-1).view(torch.uint8), group=mesh.get_group(), group_src=0)
            if sent.data_ptr() != value.data_ptr():
                value.copy_(sent)
