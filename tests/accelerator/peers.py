"""A counted step of osdp and of torch's own sharding, with the same units. Named "osdp ..." and "torch ..."."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from cases import plan_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.nn.parallel import DistributedDataParallel
from training import Setting, sgd

import osdp

PEERS: dict[str, Callable[[Setting], None]] = {}
STEPS = 5  # the last is counted


def train(s: Setting, model: nn.Module, clip: Callable[..., torch.Tensor] | None) -> None:
    optimizer = sgd(model.parameters())

    def step(i: int) -> None:
        loss = s.loss(model, i)
        s.tell(loss)
        loss.backward()
        if clip is not None:
            s.tell(local(clip(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()

    for i in range(STEPS - 1):
        step(i)
    with s.counting():
        step(STEPS - 1)


def local(norm: torch.Tensor) -> torch.Tensor:
    return norm.full_tensor() if isinstance(norm, dist.tensor.DTensor) else norm


def of_osdp(
    mode: str, clip: bool = True, error_if_nonfinite: bool = False, **sharding: Any
) -> Callable[[Setting], None]:
    """Every block a unit, and the rest one."""

    def run(s: Setting) -> None:
        model = s.model()
        plan = plan_of(s, model, mode)
        units: dict[str, list[str]] = {}
        for name in plan.choices:
            units.setdefault(name.split(".")[1] if name.startswith("blocks") else "rest", []).append(name)
        plan = dataclasses.replace(plan, units=tuple(tuple(names) for names in units.values()))
        options = dict(sharding)
        if mode == "HYBRID_SHARD":
            options["ranks_per_host"] = max(1, s.world // 2)
        if not options.get("cpu_offload"):
            model = model.to(s.device)
        model = osdp.fully_shard(model, plan, device_id=s.device, **options)
        how = functools.partial(torch.nn.utils.clip_grad_norm_, error_if_nonfinite=error_if_nonfinite)
        train(s, model, how if clip else None)

    return run


def of_fsdp2(clip: bool = True, hybrid: bool = False, **sharding: Any) -> Callable[[Setting], None]:
    def run(s: Setting) -> None:
        shape = (2, s.world // 2) if hybrid else (s.world,)
        mesh = init_device_mesh(s.device.type, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        model = s.model()
        if "offload_policy" not in sharding:
            model = model.to(s.device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, **sharding)
        fully_shard(model, mesh=mesh, **sharding)
        train(s, model, torch.nn.utils.clip_grad_norm_ if clip else None)

    return run


def ddp(s: Setting) -> None:
    train(s, DistributedDataParallel(s.model().to(s.device)), torch.nn.utils.clip_grad_norm_)


def fsdp1(s: Setting) -> None:
    model = s.model().to(s.device)
    model.blocks = nn.ModuleList(FSDP1(b, device_id=s.device, use_orig_params=True) for b in model.blocks)
    model = FSDP1(model, device_id=s.device, use_orig_params=True)
    train(s, model, lambda _, most: model.clip_grad_norm_(most))


BF16 = torch.bfloat16
PEERS |= {
    "osdp FULL_SHARD": of_osdp("FULL_SHARD"),
    "torch FULL_SHARD": of_fsdp2(),
    "osdp SHARD_GRAD_OP": of_osdp("SHARD_GRAD_OP"),
    "torch SHARD_GRAD_OP": of_fsdp2(reshard_after_forward=False),
    "osdp NO_SHARD": of_osdp("NO_SHARD"),
    "torch NO_SHARD": ddp,
    "osdp bf16": of_osdp("FULL_SHARD", mixed_precision=osdp.MixedPrecision(param_dtype=BF16)),
    "torch bf16": of_fsdp2(mp_policy=MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=BF16)),
    "osdp offload": of_osdp("FULL_SHARD", clip=False, cpu_offload=True),
    "torch offload": of_fsdp2(clip=False, offload_policy=CPUOffloadPolicy()),
    "osdp HYBRID_SHARD": of_osdp("HYBRID_SHARD"),
    "torch HYBRID_SHARD": of_fsdp2(hybrid=True),
    "torch FSDP1": fsdp1,
    "osdp error asked for": of_osdp("FULL_SHARD", clip=True, error_if_nonfinite=True),
}
