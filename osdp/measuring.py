"""How fast this machine is: collectives, matrix products, the optimizer's step."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from osdp import _C
from osdp.clock import synchronize
from osdp.fitting import fit
from osdp.hardware import Collective
from osdp.lane_group import lane_group

SIZES = (2**12, 2**15, 2**18, 2**20, 2**22)  # bytes of the full tensor: from all latency to mostly transfer
_ROUNDS = (5, 60)  # fewest, most
# Note [A link's first bytes are fast]
# Buffers along the way, and links that are shaped, take some hundred KiB at once before they slow down to their rate. A
# step does not feel this, since its collectives follow each other; a collective by itself does, and a small one is
# nothing else. So a large one goes before, and each is timed as the mean of several without a pause.
_FIRST = 2**20  # bytes
_MOVED, _MOST_REPEATS = 2**21, 64  # bytes of full tensors in all, and no more collectives than this


def measure_collectives(
    device: torch.device, group: dist.ProcessGroup | None, world: int, seconds: float
) -> tuple[Collective, Collective, Collective]:
    """all_gather, reduce_scatter, all_reduce of the `world` ranks of `group` (None: the default one), as the
    runtime does them. Collective; about `seconds` long.

    Several of every size and collective are run in every round, so that a disturbance meets all of them; the median over
    rounds, averaged over ranks, is fitted.
    """
    if world == 1:
        nothing = Collective(0.0, 0.0)
        return nothing, nothing, nothing
    ours = lane_collectives(device, group)
    jobs: list[tuple[int, int, Callable[[], object]]] = []
    first = torch.zeros(_FIRST // 4, device=device)
    for size in SIZES:
        part = torch.zeros(max(1, size // 4 // world), device=device)
        whole = torch.zeros(part.numel() * world, device=device)
        repeats = min(max(1, _MOVED // size), _MOST_REPEATS)
        jobs.append((0, repeats, lambda w=whole, p=part: ours.all_gather([w], [p])))  # type: ignore[misc]
        jobs.append((1, repeats, lambda w=whole, p=part: ours.reduce_scatter_mean([p], [w])))  # type: ignore[misc]
        jobs.append((2, repeats, lambda w=whole: ours.all_reduce_mean([w])))  # type: ignore[misc]

    def run_round() -> list[float]:
        times = []
        for _, repeats, job in jobs:
            meet()  # else the time of a rank that comes early is the other's delay
            ours.all_reduce_mean([first])
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(repeats):
                job()
            synchronize(device)
            times.append((time.perf_counter() - begin) / repeats)
        return times

    def meet() -> None:
        ours.all_reduce_mean([torch.zeros(1, device=device)])
        synchronize(device)

    run_round()  # connections are made on first use
    took = sum(t * repeats for t, (_, repeats, _) in zip(run_round(), jobs, strict=True))
    rounds = torch.tensor([seconds / max(1e-9, took * 1.5)], device=device)
    ours.all_reduce_mean([rounds])
    count = min(max(int(rounds.item()), _ROUNDS[0]), _ROUNDS[1])
    table = [run_round() for _ in range(count)]
    medians = torch.tensor([statistics.median(column) for column in zip(*table, strict=True)], device=device)
    ours.all_reduce_mean([medians])
    mean = medians.tolist()
    parts = [max(1, size // 4 // world) * 4 for size in SIZES]
    costs = []
    for kind in range(3):
        steps = (world - 1) * (2 if kind == 2 else 1)
        costs.append(fit(parts, [t / steps for t, (k, _, _) in zip(mean, jobs, strict=True) if k == kind]))
    return costs[0], costs[1], costs[2]


def lane_collectives(device: torch.device, group: dist.ProcessGroup | None) -> _C.Collectives:
    """The collectives of `group` (None: the default one) as the runtime does them."""
    assert group is not None or dist.group.WORLD is not None
    return lane_group(group or dist.group.WORLD, device).collectives  # type: ignore[arg-type]


def measure_flops(device: torch.device, seconds: float) -> float:
    """Floating-point operations per second of a square fp32 matrix product that takes some milliseconds."""
    size = 256
    while True:
        a, b = torch.randn(2, size, size, device=device).unbind()
        took = _median_time(device, lambda a=a, b=b: a @ b, seconds / 8, at_most=3)  # type: ignore[misc]
        if took > 3e-3 or size >= 8192:
            break
        size *= 2
    took = _median_time(device, lambda: a @ b, seconds / 2, at_most=30)
    return 2 * size**3 / took


def measure_optimizer(device: torch.device, seconds: float) -> float:
    """Seconds of a fused AdamW step per byte of fp32 parameters."""
    # With gradient and state 64 MiB: more than caches hold, as in a real model.
    parameter = torch.zeros(2**22, device=device, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()  # makes the state
    return _median_time(device, optimizer.step, seconds, at_most=50) / (
        parameter.numel() * parameter.element_size()
    )


def _median_time(device: torch.device, job: Callable[[], object], seconds: float, at_most: int) -> float:
    job()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (len(times) < at_most and time.perf_counter() < end):
        synchronize(device)
        begin = time.perf_counter()
        job()
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def device_memory(device: torch.device, ranks_on_host: int) -> int:
    """Bytes of memory that one rank has: the device's, or its part of the host's (of the container's, if
    less).
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total // ranks_on_host
