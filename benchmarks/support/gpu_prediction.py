"""This machine profiled, a plan searched with that, and its step measured beside its prediction: time, and memory that
tensors take and that the caching allocator reserves.

    torchrun --nproc-per-node 1 benchmarks/support/gpu_prediction.py [--layers 24] [--width 2048] [--batch 4]
    torchrun --nproc-per-node 1 benchmarks/support/gpu_prediction.py --family "T5 large" [--modes ... --memory ...]

The model's parameters are bf16, so that every operator is measured as it is trained. One rank computes only, and so does
its prediction: collectives take several GPUs. Without an accelerator it runs on the CPU: give it a small model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import osdp
from osdp.hardware.device_statistics import DeviceStatistics

WARM_UP = 3


class WithLoss(nn.Module):
    """Of the model's own forward, so that the profile has it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = self.model(tokens[:, :-1])
        return nn.functional.cross_entropy(output.float().flatten(0, 1), tokens[:, 1:].flatten())


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def beside_prediction(
    model: nn.Module, sample: tuple[torch.Tensor, ...], seconds: float, steps: int, **searching: Any
) -> dict[str, Any]:
    """Collective. `model` is on its device; `seconds`: of the profile; `searching`: arguments of the search."""
    device = sample[0].device
    hardware = osdp.profile(model, *sample, seconds=seconds)
    given = {"batch_size": len(sample[0]), "checkpoint": False, **searching}
    plan = osdp.search(model, sample, hardware=hardware, **given)
    assert plan.predicted is not None
    statistic = DeviceStatistics(device)
    model = osdp.fully_shard(model, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type in ("cpu", "cuda"))

    def step() -> torch.Tensor:
        loss = model(*sample)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    statistic.empty_cache()
    statistic.reset_peaks()  # the profile's
    losses = [step() for _ in range(WARM_UP)]
    wait_for(device)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        losses.append(step())
        wait_for(device)
        times.append(time.perf_counter() - begin)
    report = osdp.report(model)
    return {
        "profile": {
            "flops_per_s": {"float32": hardware.flops_per_s, **hardware.flops_per_s_by_dtype},
            "optimizer_s_per_byte": hardware.optimizer_s_per_byte,
            "all_gather": dataclasses.asdict(hardware.all_gather),
            "reduce_scatter": dataclasses.asdict(hardware.reduce_scatter),
            "all_reduce": dataclasses.asdict(hardware.all_reduce),
            "communication_delay": dataclasses.asdict(hardware.communication_delay),
            "stolen_computation": hardware.stolen_computation,
            "device_memory": dataclasses.asdict(hardware.device_memory),
            "host_memory": hardware.host_memory and dataclasses.asdict(hardware.host_memory),
        },
        "modes": sorted({choice.mode for choice in plan.choices.values()}),
        "predicted": {
            "step_s": plan.predicted.step_time_s,
            "allocated_bytes": report.predicted_peak_memory_bytes,
            "reserved_bytes": report.predicted_reserved_bytes,
            "peak_bytes": plan.predicted.peak_memory_bytes,
        },
        "measured": {
            "step_s": statistics.median(times),
            "allocated_bytes": report.measured_peak_memory_bytes,
            "reserved_bytes": report.measured_reserved_bytes,
        },
        "losses": [float(losses[0]), float(losses[-1])],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 24), ("width", 2048), ("batch", 4), ("length", 1024), ("steps", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=20, help="of the profile")
    parser.add_argument("--family", help="of large_families.py")
    parser.add_argument("--modes", nargs="+", default=["FULL_SHARD"])
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--memory", help="of a plan; default: the device's")
    a = parser.parse_args()
    from gpu_step import GPT

    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        device, backend = torch.device("cuda"), "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    torch.manual_seed(0)
    sample: tuple[torch.Tensor, ...]
    if a.family:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from support.large_families import LARGE

        with device:
            model = LARGE[a.family].make().to(torch.bfloat16)
        sample = tuple(t.to(device) for t in LARGE[a.family].batch(torch.Generator().manual_seed(0)))
        sample = tuple(t.to(torch.bfloat16) if t.is_floating_point() else t for t in sample)
    else:
        with device:
            model = WithLoss(GPT(a.layers, a.width)).to(torch.bfloat16)
            sample = (torch.randint(50304, (a.batch, a.length + 1)),)
    row = {"world": dist.get_world_size(), "torch": torch.__version__, "model": a.family or "GPT"}
    row |= beside_prediction(
        model, sample, a.seconds, a.steps, modes=a.modes, memory=a.memory, checkpoint=a.recompute
    )
    if dist.get_rank() == 0:
        print(json.dumps(row), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
