"""Measures how much concurrent computation and communication slow each other down, on devices with
asynchronous streams.

Note [In flight while computing]
The host runs ahead of the device, so its clock does not show what the device executes at a given time. Large
collectives are submitted on a side stream, one after the other, enough to last longer than the computation;
then the computation is enqueued on the caller's stream. Both wait for products that last until the host has
enqueued them: fast collectives would be over before the computation begins. Events around each collective and around the
computation show afterwards, on the device's clock, which parts of the collectives overlapped with the
computation. Only those are used: for the delay, their additional time compared to running alone; for the
stolen computation, the time that this communication would have taken alone.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist

from osdp.hardware.alpha_beta_fit import fit
from osdp.hardware.device_timer import synchronize
from osdp.hardware.hardware import Collective
from osdp.profiling.machine_speed import WARM_UPS, lane_collectives, mean_over_ranks, meet, products

MOST_SUBMITTED = 256  # collectives in flight
FEWEST_TRIALS = 3
MOST_TRIALS = 30
_HELD = 64  # collectives that the host submits while the products that hold them back last
_HALF = 0.5  # fraction of a collective that must overlap with computation for its delay to count


@dataclass(frozen=True)
class Trial:
    """Device times in seconds: begin and end of the computation, begin of the first collective, and the ends
    of all collectives in the order of submission.
    """

    computed: tuple[float, float]
    communicated: Sequence[float]

    @property
    def compute_s(self) -> float:
        return self.computed[1] - self.computed[0]

    def beside(self) -> list[tuple[float, float]]:
        """For each collective: its seconds, and the fraction that overlapped with the computation."""
        result = []
        for begin, end in zip(self.communicated, self.communicated[1:], strict=False):
            both = min(end, self.computed[1]) - max(begin, self.computed[0])
            took = end - begin
            result.append((took, max(0.0, both) / took if took > 0 else 0.0))
        return result


@dataclass
class Judgement:
    """Evaluates trials of all-reduces of several sizes, in turn."""

    alone_s: Sequence[float]  # by size
    compute_alone_s: float

    def delays(self, trials: Sequence[Trial]) -> list[float | None]:
        """By size: additional seconds during computation; None if no collective overlapped with it for the
        most part."""
        longer: list[list[float]] = [[] for _ in self.alone_s]
        for trial in trials:
            for i, (took, share) in enumerate(trial.beside()):
                if share >= _HALF:
                    size = i % len(self.alone_s)
                    longer[size].append((took - self.alone_s[size]) / share)
        return [max(0.0, statistics.median(found)) if found else None for found in longer]

    def stolen(self, trials: Sequence[Trial]) -> float | None:
        """Additional seconds of computation per second that the concurrent communication would take alone;
        None if nothing ran concurrently.
        """
        found = []
        for trial in trials:
            shares = [share for _, share in trial.beside()]
            alone = sum(s * self.alone_s[i % len(self.alone_s)] for i, s in enumerate(shares))
            if alone > 0:
                found.append((trial.compute_s - self.compute_alone_s) / alone)
        return max(0.0, statistics.median(found)) if found else None


def measure_by_events(
    device: torch.device,
    group: dist.ProcessGroup | None,
    world: int,
    sizes: Sequence[int],
    seconds: float,
    step: Callable[[], object] | None,
) -> tuple[Collective, float]:
    """(`Hardware.communication_delay`, `Hardware.stolen_computation`). Collective; takes about `seconds`.

    `step` must only enqueue; None: matrix products. If the device does not run them concurrently, both are 0.
    """
    bench = Trials(device, group, sizes)
    for _ in range(WARM_UPS):
        bench.run(len(sizes), None)
    alone_trials = [bench.run(len(sizes), None) for _ in range(FEWEST_TRIALS)]
    alone = bench.mean([statistics.median(t.beside()[i][0] for t in alone_trials) for i in range(len(sizes))])
    compute = step or products(device, at_least_s=2 * sum(alone))
    for _ in range(WARM_UPS):
        bench.run(0, compute)
    compute_s = bench.mean(
        [statistics.median(bench.run(0, compute).compute_s for _ in range(FEWEST_TRIALS))]
    )[0]
    judgement = Judgement(alone, compute_s)
    # Enough to last slightly longer than the computation.
    count = _count(len(sizes), 1.2 * compute_s / max(sum(alone), 1e-9))
    trials: list[Trial] = []
    end = time.perf_counter() + seconds
    for n in range(MOST_TRIALS):
        trial = bench.run(count, compute)
        if n < WARM_UPS:
            short = trial.computed[1] - trial.communicated[-1]
            lasted = max(trial.communicated[-1] - trial.communicated[0], 1e-9)
            rounds = bench.mean([count / len(sizes) * max(1.0, 1 + 1.2 * short / lasted)])[0]
            count = _count(len(sizes), rounds)
            continue
        trials.append(trial)
        if len(trials) >= FEWEST_TRIALS and bench.mean([time.perf_counter() - end])[0] > 0:
            break
    delays = bench.agreed(judgement.delays(trials))
    (stolen,) = bench.agreed([judgement.stolen(trials)])
    steps = max(1, 2 * (world - 1))  # of an all-reduce's ring; one rank's backend may be called, too
    known = [(size / world, d / steps) for size, d in zip(sizes, delays, strict=True) if d is not None]
    delay = fit([s for s, _ in known], [d for _, d in known]) if known else Collective(0.0, 0.0)
    return delay, min(stolen or 0.0, 100.0)


def _count(sizes: int, rounds: float) -> int:
    """The number of collectives in `rounds` rounds of all sizes, in whole rounds."""
    return sizes * max(1, min(int(rounds) + 1, MOST_SUBMITTED // sizes))


class Trials:
    """Runs all-reduces of several sizes, in turn, concurrently with computation. Collective, like each of its
    methods."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None, sizes: Sequence[int]) -> None:
        self._device = device
        self._ours = lane_collectives(device, group)
        self.mean = functools.partial(mean_over_ranks, self._ours, device)
        self._tensors = [torch.zeros(size // 4, device=device) for size in sizes]
        self._side = torch.Stream(device=device)
        self._hold = products(device, at_least_s=5e-3)

    def agreed(self, values: Sequence[float | None]) -> list[float | None]:
        """The mean of each value that all ranks have; None for the others."""
        known = self.mean([float(v is not None) for v in values])
        means = self.mean([v or 0.0 for v in values])
        return [m if k > 1 - 1e-6 else None for m, k in zip(means, known, strict=True)]

    def run(self, count: int, compute: Callable[[], object] | None) -> Trial:
        """Run `count` all-reduces of all sizes, in turn, in flight while `compute` runs."""
        meet(self._ours, self._device)
        for _ in range(-(-count // _HELD)):
            self._hold()
        start = self._passed()
        marks = []
        with self._side:
            self._side.wait_event(start)
            marks.append(self._passed())
            for i in range(count):
                self._ours.submit_all_reduce_mean([self._tensors[i % len(self._tensors)]]).wait()
                marks.append(self._passed())
        begin = self._passed()
        if compute is not None:
            compute()
        end = self._passed()
        torch.accelerator.current_stream().wait_stream(self._side)
        synchronize(self._device)
        since = [start.elapsed_time(mark) / 1e3 for mark in (begin, end, *marks)]
        return Trial((since[0], since[1]), since[2:])

    def _passed(self) -> torch.Event:
        """An event recorded on the current stream."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event
