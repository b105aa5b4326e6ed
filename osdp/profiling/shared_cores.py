"""How much faster a rank computes while other ranks of its host wait: where ranks share cores, more than 1."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from osdp.hardware.this_machine import product_of
from osdp.profiling.each_rank import each
from osdp.ranks.rank_group import Together

_ROUNDS = (2, 7)  # fewest, most


def measure_fewer_ranks(
    ranks: Together,
    hosts: Sequence[object],
    device: torch.device,
    seconds: float,
    step: Callable[[], object] | None,
) -> tuple[float, ...]:
    """`Hardware.fewer_ranks_speedup`, in about `seconds`: `step` (None: a product) on all ranks and on 1, 2, 4, ... of each
    host, in turns. Collective. On accelerators, which ranks do not share, nothing."""
    most = max(hosts.count(h) for h in hosts)
    if device.type != "cpu" or most == 1:
        return ()
    job = step or product_of(device)
    mine = hosts[: ranks.rank].count(hosts[ranks.rank])  # its place among those of its host
    counts = [most, *(2**i for i in range(most.bit_length()) if 2**i < most)]
    taken: list[list[float]] = [[] for _ in counts]
    begin, rounds = time.perf_counter(), _ROUNDS[0]
    done = 0
    while done < rounds:
        for count, times in zip(counts, taken, strict=True):
            each(ranks, "timing a step of some ranks", partial(_time, job, times if mine < count else None))
        done += 1
        took = max(ranks.all(time.perf_counter() - begin)) / done
        rounds = min(max(int(seconds / took), _ROUNDS[0]), _ROUNDS[1])
    found = ranks.all([statistics.median(times) if times else None for times in taken])
    together, *fewer = (
        statistics.mean(s for s in column if s is not None) for column in zip(*found, strict=True)
    )
    return tuple(max(1.0, together / s) for s in fewer)


def _time(job: Callable[[], object], times: list[float] | None) -> None:
    if times is not None:
        begin = time.perf_counter()
        job()
        times.append(time.perf_counter() - begin)
