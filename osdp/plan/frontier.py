"""Frontier: throughput against the memory limit, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from osdp.base.later_methods import function_of
from osdp.base.printed import PrintedLater


@dataclass(frozen=True)
class FrontierPoint:
    """The figures of the best plan under one memory limit."""

    memory_limit_bytes: int
    throughput: float  # samples per second over all ranks
    step_time_s: float
    batch_size: int  # per rank
    peak_memory_bytes: int  # predicted, per rank


@dataclass(frozen=True, repr=False)
class Frontier(PrintedLater):
    """The best plans' figures under several memory limits, in ascending order; throughput never decreases."""

    points: tuple[FrontierPoint, ...]
    machine: str = ""  # "a100-8 (assumed)"

    def plot(self, ax: Any = None) -> Any:
        """Plot throughput against the memory limit: see `osdp.show.frontier_plot.plot`."""
        return function_of("Frontier.plot")(self, ax)
