"""Measures this machine's collectives, matrix products and optimizer step."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from osdp import _C
from osdp.hardware.alpha_beta_fit import fit
from osdp.hardware.device_statistics import DeviceStatistics
from osdp.hardware.device_timer import synchronize, timed
from osdp.hardware.hardware import Collective, InsideHosts
from osdp.ranks.process_groups import LaneGroup, lane_group
from osdp.ranks.rank_group import ranks_by

SIZES = (2**12, 2**15, 2**18, 2**20, 2**22)  # bytes of the full tensor: from all latency to mostly transfer
LARGE_SIZES = (2**24, 2**26, 2**28)  # at which an accelerator's links reach their full rate
MOST_OPTIMIZED = 2**28  # bytes of parameters that an accelerator's optimizer is timed on, and its host's
# Note [Memory that no cache holds]
# On a CPU, a step accesses a parameter once in forward and once in backward, and its optimizer state once; in
# between it accesses all others. So little of it is in a cache, where reading may be twice as fast or more.
# The measurements therefore cycle through memory larger than the caches: each collective uses the next piece,
# and the optimizer has parameters of that size.
COLD = 2**26  # bytes
COPIED = (2**12, 2**26)  # bytes, between host and device
# On an accelerator: kernels are loaded, and algorithms chosen, at first use; on a CPU one is enough.
WARM_UPS = 3
_ROUNDS = (5, 60)  # fewest, most
# Note [A link's first bytes are fast]
# Network buffers, and links with traffic shaping, accept some hundred KiB immediately before they slow down
# to their rate. This does not matter in a step, whose collectives follow each other; but it distorts the time
# of a single collective, most of all of a small one. So a large one runs first, and each is timed as the mean
# of several without a pause.
_FIRST = 2**20  # bytes
_MOVED, _MOST_REPEATS = 2**21, 64  # bytes of full tensors in all, and no more collectives than this


def measure_collectives(
    device: torch.device,
    ours: _C.Collectives,
    world: int,
    seconds: float,
    sizes: Sequence[int],
) -> tuple[Collective, Collective, Collective]:
    """Measure all_gather, reduce_scatter and all_reduce of the `world` ranks of `ours`, as the runtime executes
    them. Collective; takes about `seconds`.

    Every round runs several of every size and collective, so that a disturbance affects all of them; the fit
    uses the median over rounds, averaged over ranks.
    """
    jobs: list[tuple[int, int, Callable[[], object]]] = []
    first = torch.zeros(_FIRST // 4, device=device)
    pool = max(max(sizes) + 4 * world, COLD if device.type == "cpu" else 0)
    parts, wholes = Rotation(pool, device), Rotation(pool, device)
    for size in sizes:
        part = max(1, size // 4 // world)
        whole = part * world
        repeats = min(max(1, _MOVED // size), _MOST_REPEATS)
        jobs.append((0, repeats, lambda w=whole, p=part: ours.all_gather([wholes.next(w)], [parts.next(p)])))  # type: ignore[misc]
        jobs.append(
            (1, repeats, lambda w=whole, p=part: ours.reduce_scatter_mean([parts.next(p)], [wholes.next(w)]))  # type: ignore[misc]
        )
        jobs.append((2, repeats, lambda w=whole: ours.all_reduce_mean([wholes.next(w)])))  # type: ignore[misc]

    def run_round() -> list[float]:
        times = []
        for _, repeats, job in jobs:
            meet(ours, device)  # else the time of an early rank would include the other's delay
            ours.all_reduce_mean([first])
            synchronize(device)
            begin = time.perf_counter()
            for _ in range(repeats):
                job()
            synchronize(device)
            times.append((time.perf_counter() - begin) / repeats)
        return times

    for _ in range(warm_ups(device)):  # connections are established on first use
        for _, _, job in jobs:
            job()
    took = sum(t * repeats for t, (_, repeats, _) in zip(run_round(), jobs, strict=True))
    (rounds,) = mean_over_ranks(ours, device, [seconds / max(1e-9, took * 1.5)])
    count = min(max(int(rounds), _ROUNDS[0]), _ROUNDS[1])
    table = [run_round() for _ in range(count)]
    medians = [statistics.median(column) for column in zip(*table, strict=True)]
    mean = mean_over_ranks(ours, device, medians)
    sent = [max(1, size // 4 // world) * 4 for size in sizes]
    costs = []
    for kind in range(3):
        steps = (world - 1) * (2 if kind == 2 else 1)
        costs.append(fit(sent, [t / steps for t, (k, _, _) in zip(mean, jobs, strict=True) if k == kind]))
    return costs[0], costs[1], costs[2]


def measure_inside_hosts(
    device: torch.device,
    group: dist.ProcessGroup | None,
    hosts: Sequence[tuple[str, str]],
    seconds: float,
    sizes: Sequence[int],
) -> InsideHosts | None:
    """The same inside each host, all at once; None unless there are several, with several ranks each and equally many.
    `hosts`: of each rank. Collective over all of `group`."""
    lines = ranks_by(hosts)
    sizes_of = {len(line) for line in lines}
    if len(lines) == 1 or len(sizes_of) > 1 or sizes_of == {1}:
        return None
    whole = group or dist.group.WORLD
    assert whole is not None
    name = lane_of(group, device).part(whole, lines, "profile")
    mine = measure_collectives(device, _C.Collectives(name, device), len(lines[0]), seconds, sizes)
    ours = lane_collectives(device, group)
    alphas = mean_over_ranks(ours, device, [c.alpha_s for c in mine])
    betas = mean_over_ranks(ours, device, [c.beta_s_per_byte for c in mine])
    return InsideHosts(*map(Collective, alphas, betas))


def meet(lane: _C.Collectives, device: torch.device) -> None:
    """All ranks of `lane` wait for each other."""
    lane.all_reduce_mean([torch.zeros(1, device=device)])
    synchronize(device)


def mean_over_ranks(lane: _C.Collectives, device: torch.device, values: Sequence[float]) -> list[float]:
    """The mean of each of `values` over the ranks of `lane`: the same on all of them."""
    table = torch.tensor(values, device=device)
    lane.all_reduce_mean([table])
    return list(table.tolist())


class Rotation:
    """Successive pieces of one tensor, cyclically: see Note [Memory that no cache holds]."""

    def __init__(self, size: int, device: torch.device) -> None:
        # Not zeros, whose pages are mapped only when they are written.
        self._all = torch.ones(size // 4, device=device)
        self._at = 0

    def next(self, elements: int) -> torch.Tensor:
        begin = self._at if self._at + elements <= self._all.numel() else 0
        self._at = begin + elements
        return self._all[begin : self._at]


def collective_sizes(
    device: torch.device, group: dist.ProcessGroup | None, world: int, seconds: float
) -> tuple[int, ...]:
    """Bytes of the full tensors for measuring collectives, the same on all ranks: SIZES, and on an
    accelerator as many of LARGE_SIZES as its free memory and `seconds` allow. Collective.
    """
    if device.type == "cpu" or world == 1:
        return SIZES
    ours = lane_collectives(device, group)
    rounds = 3 * (warm_ups(device) + 1 + _ROUNDS[0])  # of three collectives
    sizes = list(SIZES)
    for size in LARGE_SIZES:
        tensor = torch.zeros(sizes[-1] // 4, device=device)
        took = _median_time(device, lambda t=tensor: ours.all_reduce_mean([t]), 0.0, at_most=1)  # type: ignore[misc]
        # Two tensors of the largest size, and the backend's memory.
        fits = 6 * size <= free_bytes(device) and took * size / sizes[-1] * rounds <= seconds / 2
        if mean_over_ranks(ours, device, [float(fits)])[0] < 1 - 1e-3:  # it does not fit on some rank
            break
        sizes.append(size)
    return tuple(sizes)


def warm_ups(device: torch.device) -> int:
    """The number of runs before timing."""
    return 1 if device.type == "cpu" else WARM_UPS


def free_bytes(device: torch.device) -> int:
    """Bytes available for new tensors on an accelerator."""
    told = DeviceStatistics(device).free_and_total()
    return told[0] if told is not None else 2**30


def lane_of(group: dist.ProcessGroup | None, device: torch.device) -> LaneGroup:
    """The runtime's own group for the ranks of `group` (None: the default one)."""
    assert group is not None or dist.group.WORLD is not None
    return lane_group(group or dist.group.WORLD, device)  # type: ignore[arg-type]


def lane_collectives(device: torch.device, group: dist.ProcessGroup | None) -> _C.Collectives:
    """The runtime's collectives on the ranks of `group`."""
    return lane_of(group, device).collectives


def measure_rates(device: torch.device, seconds: float) -> dict[str, float]:
    """Dtype -> floating-point operations per second, for the dtypes in which the device multiplies matrices
    ("tf32": on GPUs)."""
    others = ["bfloat16", "float16", *(["tf32"] if device.type == "cuda" else [])]
    rates = {"float32": measure_flops(device, seconds / 2)}
    for name in others:
        try:
            rates[name] = measure_flops(device, seconds / 2 / len(others), name)
        except (RuntimeError, TypeError):  # not supported by this device
            continue
    return rates


@contextmanager
def _products_in(device: torch.device, precision: str) -> Iterator[None]:
    """Sets the precision of fp32 products on a GPU: "highest" is fp32, "high" TF32."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.set_float32_matmul_precision(before)


def measure_flops(device: torch.device, seconds: float, dtype: str = "float32") -> float:
    """Floating-point operations per second of a square matrix product in `dtype` ("tf32": of fp32 matrices) that takes
    some milliseconds.
    """
    with _products_in(device, "high" if dtype == "tf32" else "highest"):
        return _measure_flops(device, seconds, getattr(torch, "float32" if dtype == "tf32" else dtype))


def products(device: torch.device, at_least_s: float) -> Callable[[], None]:
    """A function that enqueues matrix products, in bf16 if the device supports it, that take some
    milliseconds and no less than `at_least_s`."""
    dtype = torch.bfloat16
    try:
        torch.mm(*torch.ones(2, 8, 8, device=device, dtype=dtype).unbind())
    except (RuntimeError, TypeError):
        dtype = torch.float32
    size, took = 256, 0.0
    while True:
        matrix = torch.ones(size, size, device=device, dtype=dtype)
        took = _median_time(device, lambda m=matrix: torch.mm(m, m), 0.0, at_most=1)  # type: ignore[misc]
        if took > 1e-3 or size >= 8192:
            break
        size *= 2
    count = min(max(1, round(max(at_least_s, 5e-3) / took)), 1000)

    def enqueue() -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    return enqueue


def _measure_flops(device: torch.device, seconds: float, dtype: torch.dtype) -> float:
    size = 256
    while True:
        a, b = torch.randn(2, size, size, device=device).to(dtype).unbind()
        took = _median_time(device, lambda a=a, b=b: a @ b, seconds / 8, at_most=3)  # type: ignore[misc]
        if took > 3e-3 or size >= 8192:
            break
        size *= 2
    took = _median_time(device, lambda: a @ b, seconds / 2, at_most=30)
    return 2 * size**3 / took


def measure_optimizer(device: torch.device, seconds: float) -> float:
    """Seconds of a fused AdamW step per byte of fp32 parameters."""
    if device.type == "cpu":
        return _optimizer_time(device, seconds, COLD) / COLD
    # On an accelerator, increase the size until launch overhead is negligible, as far as memory and time
    # allow.
    size = 2**24
    while True:
        took = _optimizer_time(device, seconds / 3, size)
        larger = 4 * size
        if larger > MOST_OPTIMIZED:
            return took / size
        if 4 * larger > free_bytes(device) // 2 or 4 * took * (WARM_UPS + 4) > seconds:
            return took / size
        size = larger


def measure_host_memory(device: torch.device, seconds: float) -> dict[str, float]:
    """Of host memory beside an accelerator's: seconds of a copy between the two, per copy and per byte, and of a fused AdamW
    step on the host per byte of fp32 parameters. Of a CPU nothing."""
    if device.type == "cpu":
        return {}

    def copy_s(size: int) -> float:
        home = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device=device)

        def to_and_fro() -> None:
            there.copy_(home, non_blocking=True)
            home.copy_(there, non_blocking=True)

        return _median_time(device, to_and_fro, seconds / 4, at_most=30) / 2

    small, large = COPIED
    latency, took = copy_s(small), copy_s(large)
    per_byte = max(0.0, (took - latency) / (large - small))
    return {
        "host copy": max(0.0, latency - small * per_byte),
        "host copied byte": per_byte,
        "host optimizer": _optimizer_time(torch.device("cpu"), seconds / 2, MOST_OPTIMIZED) / MOST_OPTIMIZED,
    }


def _optimizer_time(device: torch.device, seconds: float, size: int) -> float:
    parameter = torch.zeros(size // 4, device=device, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()  # creates the state
    return _median_time(device, optimizer.step, seconds, at_most=50)


def _median_time(device: torch.device, job: Callable[[], object], seconds: float, at_most: int) -> float:
    for _ in range(warm_ups(device)):
        job()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < min(3, at_most) or (len(times) < at_most and time.perf_counter() < end):
        times.append(timed(job, device))
    return statistics.median(times)


def device_memory(device: torch.device, ranks_on_host: int) -> int:
    """Bytes of memory per rank: the device's, or a rank's part of the host's (of the container's limit, if
    less).
    """
    if (told := DeviceStatistics(device).free_and_total()) is not None:
        return told[1]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return total // ranks_on_host
