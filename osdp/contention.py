"""What computing and communicating at the same time cost each other."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from osdp import _C
from osdp.clock import synchronize
from osdp.fitting import fit
from osdp.hardware import Collective
from osdp.measuring import lane_collectives

SIZES = (2**14, 2**18, 2**20, 2**22)  # bytes: one message of the ring, a segment, and several
MOST_AT_ONCE = 256  # collectives in one window


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
) -> Contention:
    """Collective; about `seconds` long, longer where communication hardly gets on beside computation.

    All-reduces of four sizes, as the runtime does them, are timed on the lane: alone, and while this rank computes
    matrix products without a pause. A line through the differences is the delay of a ring's step.
    """
    # Note [What communication takes away]
    # On a CPU, the lane and the backend's threads need a processor: their seconds of it (the process's less this
    # thread's, while this thread waits) per second of communication. Computation loses them as far as the cores are
    # taken by computing threads. Timing products beside communication would say the same with more noise: what is
    # lost is small against the time that the collectives then take. On an accelerator products are timed.
    if world == 1:
        return Contention(Collective(0.0, 0.0), 0.0)
    bench = _Bench(device, group, world)
    bench.product()
    rounds: list[list[_Sample]] = []
    end = time.perf_counter() + seconds
    counts = [1] * len(SIZES)
    for n in range(12):
        rounds.append([bench.sample(i, counts[i]) for i in range(len(SIZES))])
        if n == 0:  # the first one tells how many fill a twelfth of the time
            window = seconds / 12 / len(SIZES) / 2
            times = bench.mean([sample.beside_s for sample in rounds.pop()])
            counts = [min(max(1, int(window / max(t, 1e-6))), MOST_AT_ONCE) for t in times]
        elif n >= 3 and bench.mean([time.perf_counter()])[0] > bench.mean([end])[0]:
            break
    columns = list(zip(*rounds, strict=True))
    delays = bench.mean([statistics.median(s.beside_s - s.alone_s for s in column) for column in columns])
    steps = 2 * (world - 1)
    parts = [max(1, size // 4 // world) * 4 for size in SIZES]
    delay = fit(parts, [max(0.0, d) / steps for d in delays])
    large = [s for column in columns[2:] for s in column]
    taken = sum(s.processor_s for s in large) / sum(s.alone_s for s in large)
    if device.type == "cpu":
        cores = len(os.sched_getaffinity(0))
        stolen = taken * min(1.0, ranks_on_host * torch.get_num_threads() / cores)
    else:
        stolen = sum(s.lost_s for s in large) / sum(s.alone_s for s in large)
    return Contention(delay, min(max(0.0, bench.mean([stolen])[0]), 100.0))


@dataclass(frozen=True)
class _Sample:
    """Of one all-reduce."""

    alone_s: float
    beside_s: float  # while products were computed
    processor_s: float  # of other threads than this one, alone
    lost_s: float  # by the products


class _Bench:
    def __init__(self, device: torch.device, group: dist.ProcessGroup | None, world: int) -> None:
        self._device, self._group, self._world = device, group, world
        self._ours = lane_collectives(device, group)
        self._tensors = [torch.zeros(size // 4, device=device) for size in SIZES]
        self._matrix = torch.randn(256, 256, device=device)

    def mean(self, values: list[float]) -> list[float]:
        """Over ranks: the same on all of them."""
        table = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(table, group=self._group)
        return [float(x) / self._world for x in table.tolist()]

    def product(self) -> None:
        torch.mm(self._matrix, self._matrix)
        synchronize(self._device)

    def sample(self, size: int, times: int) -> _Sample:
        """`times` all-reduces of SIZES[size] alone, products alone, both."""
        begin, processor = self._start(), time.process_time() - time.thread_time()
        self._communicate(size, times).wait()
        synchronize(self._device)
        alone = time.perf_counter() - begin
        processor = time.process_time() - time.thread_time() - processor
        end = self._start() + max(0.003, alone)
        done, passed = self._products(lambda: time.perf_counter() >= end)
        product = passed / done
        self._start()
        ticket = self._communicate(size, times)
        done, passed = self._products(lambda: ticket.done)
        lost = passed - done * product
        return _Sample(alone / times, passed / times, processor / times, lost / times)

    def _start(self) -> float:
        dist.barrier(self._group)
        synchronize(self._device)
        return time.perf_counter()

    def _communicate(self, size: int, times: int) -> _C.Ticket:
        tickets = [self._ours.submit_all_reduce_mean([self._tensors[size]]) for _ in range(times)]
        return tickets[-1]

    def _products(self, ended: Callable[[], bool]) -> tuple[int, float]:
        begin, done = time.perf_counter(), 0
        while done == 0 or not ended():
            self.product()
            done += 1
        return done, time.perf_counter() - begin
