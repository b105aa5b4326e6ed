"""Measures how much concurrent computation and communication slow each other down."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from osdp.hardware.alpha_beta_fit import fit
from osdp.hardware.device_timer import timed
from osdp.hardware.hardware import Collective
from osdp.hardware.this_machine import cores
from osdp.profiling.machine_speed import COLD, Rotation, lane_collectives, mean_over_ranks, meet
from osdp.profiling.overlap_by_events import measure_by_events

SIZES = (2**14, 2**18, 2**20, 2**22)  # bytes: one message of the ring, a segment, and several
MOST_QUEUED = 2000  # rounds of all sizes queued on the lane at a time


@dataclass(frozen=True)
class Contention:
    """See `Hardware.communication_delay` and `Hardware.stolen_computation`."""

    delay: Collective
    stolen: float

    @property
    def exposed(self) -> float:
        """`Hardware.exposed_communication`: at least 1, since the amount of overlap depends on the plan."""
        return max(1.0, self.stolen)


def measure_contention(
    device: torch.device,
    group: dist.ProcessGroup | None,
    world: int,
    ranks_on_host: int,
    seconds: float,
    step: Callable[[], object] | None,
    sizes: Sequence[int] = SIZES,
) -> Contention:
    """Collective; takes about `seconds`, and no less than four times `step` with its concurrent
    communication.

    On an accelerator all-reduces of the four largest `sizes` are measured with device events
    (`overlap_by_events.py`). On a CPU the runtime's all-reduces of four sizes, in turn, are timed on the
    lane: while this rank waits for them, and while it computes without a pause (`step`, a forward and
    backward of the model, or matrix products). A line fitted to the differences of the medians is the delay
    of a ring step.
    """
    # Note [What communication takes away]
    # On a CPU, the lane and the backend's threads need processor time, which they take from computation if
    # its threads use all cores; and the memory that they move evicts the computation's from caches. So the
    # computation lost per second of communication is the processor time of these threads during `step`, plus
    # the additional processor time of the computing thread compared to running alone, divided by the time
    # that the collectives completed meanwhile would take alone. Processor time is used because elapsed time
    # is noisier.
    if world == 1:
        return Contention(Collective(0.0, 0.0), 0.0)
    if device.type != "cpu":
        large = sorted(sizes, reverse=True)[: len(SIZES)]
        return Contention(*measure_by_events(device, group, world, large, seconds, step))
    bench = _Bench(device, group)
    compute = step or bench.products
    mean = functools.partial(mean_over_ranks, bench.ours, device)
    bench.communicate(1)  # establishes connections
    alone: list[list[float]] = [[] for _ in SIZES]  # seconds of each all-reduce, by size
    beside: list[list[float]] = [[] for _ in SIZES]
    ended = [0] * len(SIZES)  # during computation
    processor_s = 0.0
    alone_s: list[float] = []  # processor time of the computing thread
    beside_s: list[float] = []
    begin = time.perf_counter()
    timed(compute, device)
    step_s = mean([timed(compute, device)])[0]
    rounds, end = 1, begin + seconds
    for n in range(20):
        _add(alone, bench.communicate(3))
        meet(bench.ours, device)
        thread_s = time.thread_time()
        compute()
        alone_s.append(time.thread_time() - thread_s)
        trial = bench.communicate(rounds, compute)
        # Enough to last slightly longer than the step.
        took = mean([trial.passed_s])[0]
        rounds = min(max(rounds, int(1.5 * rounds * step_s / max(took, 1e-6)) + 1), MOST_QUEUED)
        if n == 0:
            continue  # this round only determined their number
        _add(beside, trial)
        ended = [before + len(more) for before, more in zip(ended, trial.seconds, strict=True)]
        processor_s += trial.processor_s
        beside_s.append(trial.thread_s)
        if n >= 3 and mean([time.perf_counter() - end])[0] > 0:
            break
    lasting = [statistics.median(seconds) for seconds in alone]
    differences = [
        statistics.median(with_) - without if with_ else 0.0
        for with_, without in zip(beside, lasting, strict=True)
    ]
    parts = [max(1, size // 4 // world) * 4 for size in SIZES]
    steps = 2 * (world - 1)  # of an all-reduce's ring
    delay = fit(parts, [max(0.0, d) / steps for d in mean(differences)])
    busy = min(1.0, ranks_on_host * torch.get_num_threads() / cores())
    covered_s = sum(s * n for s, n in zip(lasting, ended, strict=True))
    slower_s = len(beside_s) * (statistics.median(beside_s) - statistics.median(alone_s))
    lost_s = processor_s * busy + max(0.0, slower_s)
    stolen = mean([lost_s / covered_s if covered_s > 0 else 0.0])[0]
    return Contention(delay, min(max(0.0, stolen), 100.0))


@dataclass
class _Trial:
    """Rounds of all-reduces; those that ended before the computation are recorded."""

    seconds: list[list[float]]  # by size
    processor_s: float  # of other threads, until then
    thread_s: float  # of this one
    passed_s: float


def _add(seconds: list[list[float]], trial: _Trial) -> None:
    for all_, more in zip(seconds, trial.seconds, strict=True):
        all_ += more


class _Bench:
    def __init__(self, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._device = device
        self.ours = lane_collectives(device, group)
        self._tensors = Rotation(COLD, device)
        self._matrix = torch.randn(512, 512, device=device)

    def products(self) -> None:
        for _ in range(16):
            torch.mm(self._matrix, self._matrix)

    def communicate(self, rounds: int, compute: Callable[[], object] | None = None) -> _Trial:
        """Run `rounds` of all-reduces of all sizes, while waiting, or concurrently with one `compute`."""
        meet(self.ours, self._device)
        begin, processor_s, thread_s = time.perf_counter(), _others(), time.thread_time()
        tickets = [
            self.ours.submit_all_reduce_mean([self._tensors.next(size // 4)])
            for _ in range(rounds)
            for size in SIZES
        ]
        ended = len(tickets)
        if compute is not None:
            compute()
            processor_s, thread_s = _others() - processor_s, time.thread_time() - thread_s
            ended = sum(ticket.done for ticket in tickets)
        tickets[-1].wait()
        seconds: list[list[float]] = [[] for _ in SIZES]
        for i, ticket in enumerate(tickets[:ended]):
            seconds[i % len(SIZES)].append(ticket.seconds)
        return _Trial(seconds, processor_s, thread_s, time.perf_counter() - begin)


def _others() -> float:
    """Processor time of the other threads of this process, in seconds."""
    return time.process_time() - time.thread_time()
