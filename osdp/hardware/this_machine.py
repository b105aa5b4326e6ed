"""Identifies the present machine and measures its current speed."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from osdp.base.warned import warn
from osdp.errors import MachineMismatchWarning
from osdp.hardware.device_timer import timed
from osdp.hardware.hardware import Hardware, Measured

# Note [Two fixed jobs]
# A matrix product that fits in a cache and a copy that does not: training is a mixture of both.
# `osdp.profile` times them on all ranks at once, and `osdp.report` times them again. Each takes a few
# milliseconds. On a CPU their memory does not come from torch's allocator, so it does not count towards the
# measured peak.
_PRODUCT = {"cpu": 512, "cuda": 4096}  # rows and columns, by device
_PRODUCT_ELSEWHERE = 1024
_COPIED = 2**26  # bytes, as osdp.profiling.machine_speed.COLD
_REPEATS = 11


def processor_of(device: torch.device) -> str:
    """Model of the processor or accelerator, such as "AMD EPYC 7763 64-Core Processor"."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type != "cpu":
        return device.type
    told = Path("/proc/cpuinfo")
    names = (
        [line for line in told.read_text().splitlines() if line.startswith("model name")]
        if told.is_file()
        else []
    )
    return (
        names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine() or "cpu"
    )


def measure_probe(device: torch.device) -> tuple[float, float]:
    """Median seconds of the two fixed jobs: (product, copy)."""
    source, copied = (_memory(_COPIED // 4, device) for _ in range(2))
    with torch.no_grad():
        jobs: tuple[Callable[[], object], ...] = (
            product_of(device),
            lambda: copied.copy_(source),
        )
        product_s, copy_s = (statistics.median(timed(job, device) for _ in range(_REPEATS)) for job in jobs)
    return product_s, copy_s


def product_of(device: torch.device) -> Callable[[], object]:
    """The matrix product among them."""
    size = _PRODUCT.get(device.type, _PRODUCT_ELSEWHERE)
    a, b, product = (_memory(size * size, device).view(size, size) for _ in range(3))
    return lambda: torch.mm(a, b, out=product)


def measured_here(device: torch.device, product_s: float, copy_s: float) -> Measured:
    """The record of the present machine that a profile stores."""
    return Measured(
        processor=processor_of(device)[:200],
        cores=cores(),
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        product_s=product_s,
        copy_s=copy_s,
    )


def differences(hardware: Hardware, device: torch.device, ranks: int) -> list[str]:
    """Differences between the present machine and the one in `hardware`, one phrase each."""
    pairs: list[tuple[str, object, object]] = [("device", hardware.device, device.type)]
    then = hardware.measured
    if then is not None:
        now = measured_here(device, then.product_s, then.copy_s)
        pairs += [("ranks", hardware.world_size, ranks)]
        pairs += [
            (what, getattr(then, what), getattr(now, what))
            for what in ("processor", "cores", "threads", "torch")
        ]
    return [f"{what} {here}, not {there}" for what, there, here in pairs if here != there]


def warn_of_another_machine(hardware: Hardware | None, device: torch.device, ranks: int) -> None:
    """Emit MachineMismatchWarning if the predictions were made for another machine; one process per host
    warns."""
    if hardware is None or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    if found := differences(hardware, device, ranks):
        warn(
            f"the plan is for {hardware.label}, and this machine differs: {'; '.join(found)}. Training works; "
            'to plan for this machine: osdp.search(..., hardware="this")',
            MachineMismatchWarning,
        )


def cores() -> int:
    """The number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory(elements: int, device: torch.device) -> torch.Tensor:
    """Initialized memory, so that its pages are mapped."""
    if device.type != "cpu":
        return torch.ones(elements, device=device)
    return torch.frombuffer(bytearray(4 * elements), dtype=torch.float32).fill_(1.0)
