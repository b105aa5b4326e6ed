"""Parameters that every rank of a tensor-parallel group holds whole, beside those that torch's styles make DTensors.

Their gradients are one process's if each rank computes with whole activations, and then they are the same on all ranks.
Where a rank has a part of the sequence (sequence parallelism), or of a divided output, it has a part of the gradient, and
nothing in shapes tells (a scale of the width): so the first step compares them. Those whose gradients are zero then (before
a projection that begins at zero) are compared again in the steps 2, 4, 8, ... as long as there are some.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from osdp.base.tensor_parallel import local_part

# Equal computations differ by rounding at most; parts of a sum differ by about as much as they are. So do sums over every
# eighth element, of which at least one then tells.
_TOLERANCE, _SUMS = 0.05, 8


def whole_parameters(model: nn.Module) -> list[str]:
    """Of a model to which torch's styles have been applied."""
    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def gradients_apart(
    model: nn.Module, whole: Collection[str], group: dist.ProcessGroup
) -> tuple[str, list[str]]:
    """The first of the parameters `whole` whose gradient is another one on another rank of `group`, or "", and those whose
    gradient is zero on all of them. Collective."""
    names, numbers, unknown = [], [], []
    for name, parameter in model.named_parameters():
        if name not in whole or not local_part(parameter.detach()).numel():
            continue
        if parameter.grad is None:
            unknown.append(name)  # also what is frozen, which may be trained later
        else:
            gradient = local_part(parameter.grad).detach().flatten().double()
            names.append(name)
            numbers.append(
                torch.stack([*(gradient[k::_SUMS].sum() for k in range(_SUMS)), gradient.norm()]).cpu()
            )
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(
        told, {name: n.tolist() for name, n in zip(names, numbers, strict=True)}, group=group
    )
    for name in names:
        seen = torch.tensor([other.get(name, [0.0] * (_SUMS + 1)) for other in told], dtype=torch.float64)
        if (seen.amax(0) - seen.amin(0)).max() > _TOLERANCE * seen[:, -1].max():
            return name, []
        if not seen[:, -1].max():
            unknown.append(name)
    return "", unknown
