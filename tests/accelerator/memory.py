"""How much memory a step takes, of which stream's pool. Every parameter is a matrix of MATRIX bytes, its own unit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from cases import accumulated, sharded
from torch import nn
from training import Setting, described, sgd

import osdp
from osdp.hardware.hardware import DeviceMemory, Hardware

SIDE, LAYERS = 512, 6
MATRIX = 4 * SIDE * SIDE
OFFLOAD = "FULL_SHARD_OFFLOAD"
MEMORY: dict[str, Callable[[Setting], None]] = {}


def of_the_group(s: Setting, sharding: dict[str, Any]) -> dict[str, Any]:
    """The CPU, which the numbers are compared with, has no such memory."""
    name = "allocate_memory_from_process_group_for_comm"
    return {**sharding, name: sharding.get(name, False) and s.device.type != "cpu"}


def trained(mode: str, **sharding: Any) -> Callable[[Setting], None]:
    """The small GPT, in three steps of three micro-batches."""

    def run(s: Setting) -> None:
        options = of_the_group(s, sharding)
        if mode == "HYBRID_SHARD":
            options["ranks_per_host"] = max(1, s.world // 2)
        accumulated(s, sharded(s, mode, **options), False)

    return run


def measured(mode: str, **sharding: Any) -> Callable[[Setting], None]:
    """The second micro-batch of a step, so that what remains of it is there before."""

    def run(s: Setting) -> None:
        torch.manual_seed(7)
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))
        sample = torch.zeros(2, SIDE)
        options = of_the_group(s, sharding)
        plan = osdp.Plan.uniform(described(model, sample), mode)
        if not sharding.get("cpu_offload"):
            model = model.to(s.device)
        model = osdp.fully_shard(model, plan, device_id=s.device, **options)
        optimizer = sgd(model.parameters())
        x = torch.randn(2, SIDE, generator=torch.Generator().manual_seed(s.rank)).to(s.device)

        def backward() -> None:
            loss = model(x).float().square().mean()
            s.tell(loss)
            loss.backward()

        for _ in range(3):
            backward()
            with s.counting():
                backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def searched(
    mode: str, micro_batches: int = 1, of_group: bool = False, slices: int = 1, **searching: Any
) -> Callable[[Setting], None]:
    """A plan's predicted peak beside all that a step and the optimizer take, from before the model is there."""

    def run(s: Setting) -> None:
        torch.manual_seed(7)
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)))
        hardware = dataclasses.replace(Hardware.load("a100-8"), device_memory=DeviceMemory())
        description = described(model, torch.zeros(2, SIDE), searching.get("precision", "fp32"))
        search = functools.partial(
            osdp.search, description, world_size=s.world, hardware=hardware, batch_size=2,
            global_batch_size=2 * s.world * micro_batches, optimizer="sgd-momentum", modes=mode, **searching,
        )  # fmt: skip
        plan = search(memory="1GiB", granularity=1)
        if slices > 1:  # about as little memory as they need
            plan = plan.replace({name: osdp.Choice(mode, slices, split="out") for name in plan.choices})
            plan = search(memory=plan.simulate().peak_memory_bytes + 32 * 1024, granularity=(slices,))
            assert all(choice.granularity == slices for choice in plan.choices.values())
        assert plan.predicted is not None and plan.accumulation == micro_batches
        options = of_the_group(s, GROUPS if of_group else {})

        def shard() -> None:
            if mode != OFFLOAD:  # else one parameter after another
                model.to(s.device)
            osdp.fully_shard(model, plan, device_id=s.device, **options)

        if slices > 1:  # for a moment each whole weight is on the device
            shard()
        with s.counting():
            if slices == 1:
                shard()
            optimizer = sgd(model.parameters())
            x = torch.randn(2, SIDE, generator=torch.Generator().manual_seed(s.rank)).to(s.device)
            for _ in range(3):
                for _ in range(micro_batches):
                    loss = model(x).float().square().mean()
                    s.tell(loss.detach().cpu())  # else it stays on the device
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        s.counts["predicted"] = plan.predicted.peak_memory_bytes
        assert plan.simulate().peak_memory_bytes <= plan.predicted.peak_memory_bytes

    return run


BF16 = torch.bfloat16
GROUPS = {"allocate_memory_from_process_group_for_comm": True}
MEMORY |= {
    "memory FULL_SHARD": measured("FULL_SHARD"),
    "memory HYBRID_SHARD": measured("HYBRID_SHARD", ranks_per_host=2),
    "memory bf16": measured("FULL_SHARD", mixed_precision=osdp.MixedPrecision(param_dtype=BF16)),
    "memory wide": measured(
        "FULL_SHARD", mixed_precision=osdp.MixedPrecision(param_dtype=BF16, reduce_dtype=torch.float32)
    ),
    "memory of the group": measured("FULL_SHARD", **GROUPS),
    "memory of the group, GPT": trained("FULL_SHARD", **GROUPS),
    "memory of the group, hybrid": trained("HYBRID_SHARD", **GROUPS),
    "memory searched": searched("FULL_SHARD"),
    "memory searched, accumulated": searched("FULL_SHARD", 3),
    "memory searched, bf16": searched("FULL_SHARD", 3, precision="bf16"),
    "memory searched, of the group": searched("FULL_SHARD", of_group=True),
    "memory searched, offloaded, accumulated": searched(OFFLOAD, 3),
    "memory searched, offloaded, bf16, accumulated": searched(OFFLOAD, 3, precision="bf16"),
    "memory searched, slices offloaded": searched(OFFLOAD, slices=4),
    "memory searched, slices offloaded, accumulated": searched(OFFLOAD, 3, slices=4),
    "memory searched, slices offloaded, bf16, accumulated": searched(OFFLOAD, 3, slices=4, precision="bf16"),
    "memory searched, whole, bf16": searched("NO_SHARD", precision="bf16"),
    "memory searched, whole, bf16, accumulated": searched("NO_SHARD", 3, precision="bf16"),
    "memory searched, whole, wide": searched("NO_SHARD", precision="bf16-reduce-fp32"),
    "memory offload": measured("FULL_SHARD", cpu_offload=True),
}
