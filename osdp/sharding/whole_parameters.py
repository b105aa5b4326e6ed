"""Parameters that every rank of a tensor-parallel group holds whole, beside those that torch's styles make DTensors.

Their gradients are one process's if each rank computes with whole activations, and then they are the same on all ranks.
Where a rank has a part of the sequence (sequence parallelism), or of a divided output, it has a part of the gradient, and
nothing in shapes tells (a scale of the width, keys that several ranks' queries share, a norm of each head that the styles
leave out): so the first step compares them. Those whose gradients are zero then (before a projection that begins at zero)
are compared again in the steps 2, 4, 8, ... as long as there are some.
  A script that calls parallelize_module and fully_shard itself may add such parts before its optimizer steps, and may have
slices that it has cut by hand beside DTensors. So there an optimizer's step is what compares, and only what all ranks had
with equal values at the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from osdp.base.tensor_parallel import layout_of, local_part
from osdp.errors import ShardingError
from osdp.ranks.rank_group import Together
from osdp.sharding.sharded_model import Sharded, sharded_models

# Equal computations differ by rounding at most; parts of a sum differ by about as much as they are. So do sums over every
# eighth element, of which at least one then tells.
_TOLERANCE, _SUMS = 0.05, 8


def whole_parameters(model: nn.Module) -> list[str]:
    """Of a model to which torch's styles have been applied."""
    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def partial_gradient(name: str) -> str:
    return (
        f"the gradient of {name!r} differs between ranks of a tensor-parallel group, which all hold it whole: "
        "forward computes with it on a part of the sequence (sequence parallelism) or of a divided output, so each "
        "rank has a part of its gradient. Use it where activations are whole, or in a module with a style in "
        "tp_plan (SequenceParallel)"
    )


class GradientsOfReplicas:
    """Of an optimizer's parameters, before its steps 1, 2, 4, 8, ..."""

    def __init__(self) -> None:
        self._steps = 0
        self._replicas: dict[int, bool] = {}  # by id: whether all ranks had equal values at first

    def check(self, optimizer: Optimizer) -> None:
        """Raises ShardingError on all ranks. Collective over a model's ranks and those of its tensor parallelism."""
        self._steps += 1
        if self._steps & (self._steps - 1):
            return
        given = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for _, sharded in sharded_models():
            if sharded.tensor_parallel and not sharded.runtime.in_pass:
                self._check(sharded, given)

    def _check(self, sharded: Sharded, given: Collection[int]) -> None:
        known = {name: sharded.tree.known[index] for name, index in sharded.index.items()}
        layouts = {name: layout for name, p in known.items() if (layout := layout_of(p)) is not None}
        divided = {name for name, layout in layouts.items() if layout.divided}
        whole = {name: p for name, p in known.items() if id(p) in given and name not in divided}
        if not whole:
            return
        group = next(iter(layouts.values())).mesh.get_group(0)
        if new := {name: p.detach() for name, p in whole.items() if id(p) not in self._replicas}:
            for name, numbers in _of_every_rank(new, group).items():
                by_hand = getattr(whole[name], "tensor_model_parallel", False)  # Megatron's, of slices
                self._replicas[id(whole[name])] = not (by_hand or _differ(numbers))
        replicas = ((name, p) for name, p in whole.items() if self._replicas[id(p)])
        told = Together(sharded.group, "comparing gradients").all(gradients_apart(replicas, group)[0])
        if name := next(filter(None, told), ""):
            raise ShardingError(
                f"{sharded.runtime.rank_name}: {partial_gradient(name)}; or sum its gradient over these ranks before the "
                "optimizer's step. (So it differs, too, if they were given other samples, or draw other random numbers)"
            )


_looks: WeakKeyDictionary[Optimizer, GradientsOfReplicas] = WeakKeyDictionary()


def check_replicas(optimizer: Optimizer) -> None:
    """Before a step of `optimizer`, whose gradients are there. Raises ShardingError."""
    look = _looks.get(optimizer) or _looks.setdefault(optimizer, GradientsOfReplicas())
    look.check(optimizer)


def gradients_apart(
    named: Iterable[tuple[str, nn.Parameter]], group: dist.ProcessGroup
) -> tuple[str, list[str]]:
    """The last of the parameters whose gradient is another one on another rank of `group` (what comes before it in forward
    gets a part of its gradient from there), or "", and those without one, or whose gradient is zero on all of them.
    Collective."""
    gradients = {name: p.grad for name, p in named}
    unknown = [name for name, g in gradients.items() if g is None]  # frozen ones may be trained later
    seen = _of_every_rank({name: g for name, g in gradients.items() if g is not None}, group)
    if apart := [name for name, numbers in seen.items() if _differ(numbers)]:
        return apart[-1], []
    return "", unknown + [name for name, numbers in seen.items() if not numbers[:, -1].max()]


def _of_every_rank(tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Of each tensor sums over every eighth element, and the norm; a row for each rank of `group`. Collective."""
    mine = {}
    for name, tensor in tensors.items():
        flat = local_part(tensor).detach().flatten().double()
        mine[name] = [*(float(flat[k::_SUMS].sum()) for k in range(_SUMS)), float(flat.norm())]
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, mine, group=group)
    nothing = [0.0] * (_SUMS + 1)
    return {
        name: torch.tensor([other.get(name, nothing) for other in told], dtype=torch.float64) for name in mine
    }


def _differ(numbers: Tensor) -> bool:
    return bool((numbers.amax(0) - numbers.amin(0)).max() > _TOLERANCE * numbers[:, -1].max())
