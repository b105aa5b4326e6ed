"""PyTorch's own data parallels, FairScale's where it is installed, and OSDP's single modes, around a model.

`units` are the submodules that FSDP1 and FSDP2 gather together (as their users choose them: a model's blocks).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import Tensor, nn

import osdp
from support.fairscale_cpu import fairscale_fsdp

Wrap = Callable[[nn.Module, list[nn.Module]], nn.Module]


def bare(model: nn.Module, units: list[nn.Module]) -> nn.Module:
    return model


def ddp(model: nn.Module, units: list[nn.Module]) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp1(model: nn.Module, units: list[nn.Module]) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import CustomPolicy

    chosen = {id(unit) for unit in units}
    policy = CustomPolicy(lambda module: id(module) in chosen)
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def fsdp2(model: nn.Module, units: list[nn.Module]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


PEERS: Mapping[str, Wrap] = {"DDP": ddp, "FSDP1": fsdp1, "FSDP2": fsdp2}
if find_spec("fairscale"):
    PEERS = {**PEERS, "FairScale": fairscale_fsdp}


def under(plan: osdp.Plan) -> Wrap:
    return lambda model, units: osdp.fully_shard(model, plan)


def uniform_plans(description: osdp.ModelDescription, *, hybrid: bool = False) -> dict[str, osdp.Plan]:
    """OSDP with every operator alike; the description is of the model on a sample, so that slices are known."""
    modes = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD") + ("HYBRID_SHARD",) * hybrid
    plans = {f"OSDP {mode}": osdp.Plan.uniform(description, mode) for mode in modes}
    plans["OSDP FULL_SHARD in 4 slices"] = osdp.Plan.uniform(description, "FULL_SHARD", granularity=4)
    return plans


def single_modes(description: osdp.ModelDescription) -> dict[str, Wrap]:
    return {name: under(plan) for name, plan in uniform_plans(description).items()}


def local_bytes(model: nn.Module) -> int:
    """Bytes of the parameters that this rank holds between steps."""

    def local(p: Tensor) -> Tensor:
        return p.to_local() if hasattr(p, "to_local") else p

    return sum(local(p).numel() * p.element_size() for p in model.parameters())
