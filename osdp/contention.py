"""What computing and communicating at the same time cost each other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from osdp.contention_by_events import measure_by_events
from osdp.fitting import fit
from osdp.hardware import Collective
from osdp.measuring import lane_collectives

SIZES = (2**14, 2**18, 2**20, 2**22)  # bytes: one message of the ring, a segment, and several
MOST_QUEUED = 2000  # rounds of all sizes that wait on the lane at one time


@dataclass(frozen=True)
class Contention:
    """See `Hardware.communication_delay` and `Hardware.stolen_computation`."""

    delay: Collective
    stolen: float

    @property
    def exposed(self) -> float:
        """`Hardware.exposed_communication`: not less than 1, since how much is beside computation depends on the plan."""
        return max(1.0, self.stolen)


def measure_contention(
    device: torch.device,
    group: dist.ProcessGroup | None,
    world: int,
    ranks_on_host: int,
    seconds: float,
    step: Callable[[], object] | None = None,
    sizes: Sequence[int] = SIZES,
) -> Contention:
    """Collective; about `seconds` long, no less than four times `step` and what communicates beside it.

    On an accelerator by its events (`osdp/contention_by_events.py`), on all-reduces of the four largest `sizes`. On a CPU
    all-reduces of four sizes, in turn, as the runtime does them, are timed on the lane: while this rank waits for them,
    and while it computes without a pause: `step`, a forward and backward of the model, or matrix products. A line through
    the differences of the medians is the delay of a ring's step.
    """
    # Note [What communication takes away]
    # On a CPU, the lane and the backend's threads need a processor: their seconds of it (the process's less this
    # thread's, while this thread waits) per second of communication. Computation loses them as far as the cores are
    # taken by computing threads. Timing a step beside communication would say the same with more noise: what is lost
    # is small against the time that the collectives then take.
    if world == 1:
        return Contention(Collective(0.0, 0.0), 0.0)
    if device.type != "cpu":
        large = sorted(sizes, reverse=True)[: len(SIZES)]
        return Contention(*measure_by_events(device, group, world, large, seconds, step))
    bench = _Bench(device, group)
    compute = step or bench.products
    alone, beside = _Times(), _Times()
    bench.communicate(1, alone)  # makes connections
    alone, begin = _Times(), time.perf_counter()
    bench.communicate(3, alone)
    _timed(compute)
    step_s = bench.mean([_timed(compute)])[0]
    rounds = 1
    end = begin + seconds
    for n in range(20):
        bench.communicate(3, alone)
        took = bench.mean([bench.communicate(rounds, beside, compute)])[0]
        # As many as last a little longer than the step.
        rounds = min(max(rounds, int(1.2 * rounds * step_s / max(took, 1e-6)) + 1), MOST_QUEUED)
        if n == 0:
            beside = _Times()  # that was to find their number
        elif n >= 2 and bench.mean([time.perf_counter() - end])[0] > 0:
            break
    differences = [
        statistics.median(with_) - statistics.median(without)
        for with_, without in zip(beside.seconds, alone.seconds, strict=True)
    ]
    parts = [max(1, size // 4 // world) * 4 for size in SIZES]
    steps = 2 * (world - 1)  # of an all-reduce's ring
    delay = fit(parts, [max(0.0, d) / steps for d in bench.mean(differences)])
    cores = len(os.sched_getaffinity(0))
    busy = min(1.0, ranks_on_host * torch.get_num_threads() / cores)
    stolen = alone.processor_s / max(alone.passed_s, 1e-9) * busy
    return Contention(delay, min(max(0.0, bench.mean([stolen])[0]), 100.0))


@dataclass
class _Times:
    seconds: list[list[float]] = field(
        default_factory=lambda: [[] for _ in SIZES]
    )  # of each all-reduce, by size
    passed_s: float = 0.0
    processor_s: float = 0.0  # of other threads than this one


class _Bench:
    def __init__(self, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._device = device
        self._ours = lane_collectives(device, group)
        self._tensors = [torch.zeros(size // 4, device=device) for size in SIZES]
        self._matrix = torch.randn(512, 512, device=device)

    def mean(self, values: Sequence[float]) -> list[float]:
        """Over ranks: the same on all of them."""
        table = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._ours.all_reduce_mean([table])
        return [float(x) for x in table.tolist()]

    def products(self) -> None:
        for _ in range(16):
            torch.mm(self._matrix, self._matrix)

    def communicate(self, rounds: int, into: _Times, compute: Callable[[], object] | None = None) -> float:
        """`rounds` of all-reduces of all sizes, waited for, or beside one `compute`; returns their seconds.

        Those that ended after `compute` did are not noted, but for the first round.
        """
        self._ours.all_reduce_mean([torch.zeros(1, device=self._device)])  # a barrier
        begin, processor = time.perf_counter(), time.process_time() - time.thread_time()
        tickets = [self._ours.submit_all_reduce_mean([t]) for _ in range(rounds) for t in self._tensors]
        if compute is not None:
            compute()
            into.passed_s += time.perf_counter() - begin
            ended = sum(ticket.done for ticket in tickets)
            tickets[-1].wait()
        else:
            tickets[-1].wait()
            into.passed_s += time.perf_counter() - begin
            ended = len(tickets)
        into.processor_s += time.process_time() - time.thread_time() - processor
        for i, ticket in enumerate(tickets[: max(ended, len(SIZES))]):
            into.seconds[i % len(SIZES)].append(ticket.seconds)
        return time.perf_counter() - begin


def _timed(job: Callable[[], object]) -> float:
    begin = time.perf_counter()
    job()
    return time.perf_counter() - begin
