"""Searched: what a plan was searched with, in full, so that it can be verified and searched again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from osdp import _search
from osdp.base.schema import AtLeast
from osdp.plan.stage import Stage

COSTS = ("osdp", "paper")
METHODS = ("exact", "dfs", "dfs-smallest-first")
OBJECTIVES = _search.OBJECTIVES

# Note [Cost versions]
# The terms of the cost model in certificates and predictions, by version. Figures of different versions are not compared:
# `osdp.verify` refuses an older one, and reading a newer one. After a release, a change of the costs in csrc/search/problem
# or of the simulator, or of what osdp/planning gives them, raises it and adds a line here.
#   1: the first.
COST_VERSION = 1


@dataclass(frozen=True)
class Searched:
    """The arguments of `osdp.search`, with "auto" resolved.

    Together with the plan's other fields they suffice to check its certificate (`osdp.verify`) and to repeat
    the search under another limit (`plan.frontier`).
    """

    modes: tuple[str, ...]  # that the search could choose from
    granularity: tuple[int, ...]  # numbers of slices that were tried, besides 1
    checkpoint: tuple[str, ...]  # recomputations that were tried: of "none", "hold", "regather"
    batch_size: int | None = None  # None: every size that fits
    global_batch_size: int | None = None  # None: one micro-batch per step
    hosts: int = 1  # number of hosts, with equally many ranks each; more than 1 allows HYBRID_SHARD
    prefetch: int = 1  # units gathered ahead of the one in use
    objective: str = "throughput"  # one of OBJECTIVES
    at_least: float | None = None  # samples/s over all ranks that objective="memory" had to reach
    method: str = "exact"
    time_limit_s: float | None = None
    whole: tuple[str, ...] = ()  # patterns of modules and parameters that are always NO_SHARD
    # Smaller units are merged with neighbours (osdp.plan.unit_grouping.small_unit_bytes).
    small_unit_bytes: int = 256 * 2**10
    # The batch at which kernels' times are exact; None: `batch_size`, or the sample's.
    kernels_batch: Annotated[int, AtLeast(1)] | None = None
    gap: Annotated[float, AtLeast(0)] = 0.005  # of the simulated step and its bound, at which the search ends
    cost_version: Annotated[int, AtLeast(1)] = COST_VERSION  # Note [Cost versions]
    stage: Stage | None = None  # of a pipeline or a tensor-parallel group; None: neither
