"""Searched: what a plan was searched with, in full, so that it can be verified and searched again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from osdp import _search
from osdp.base.schema import AtLeast

COSTS = ("osdp", "paper")
METHODS = ("exact", "dfs", "dfs-smallest-first")
OBJECTIVES = _search.OBJECTIVES

# Note [Cost versions]
# What a plan's certificate and prediction count, by version. `osdp.verify` checks a plan by its own version, so who changes
# what the search counts raises kCostVersion in csrc/search/problem/cost.hpp, and keeps what older plans are checked by.
# Who changes what the simulator plays raises it too: of older plans the played times are not compared.
#   1: the first. No buffers of modules, no copies that mixed precision averages, no parameters that one module reads several
#      times; room is reserved for tied parameters whatever is chosen.
#   2: these too; files before version 4 do not say which of the two they are of, so either will do (`Searched.costs`).
#   3: operators' work, and the gradient being made, in their own phase; a reserve of 1 + prefetch units, not 2 + prefetch.
#   4: on accelerators, 2 + prefetch again: the gradient that leaves while the next parameters arrive.
#   5: with several micro-batches, the part of a gradient that is added to that of the earlier ones.
#   6: with one, under mixed precision, the gradient that completes a NO_SHARD bucket.
COST_VERSION = _search.COST_VERSION


@dataclass(frozen=True)
class Searched:
    """The arguments of `osdp.search` after "auto" was resolved. With a plan's other fields nothing more is
    needed to check its certificate (`osdp.verify`), or to repeat the search under another limit
    (`plan.frontier`).
    """

    modes: tuple[str, ...]  # that any operator might take
    granularity: tuple[int, ...]  # numbers of slices that were tried, beside 1
    checkpoint: tuple[str, ...]  # ways a block might be treated: "none", "hold", "regather"
    batch_size: int | None = None  # None: every size that fits
    global_batch_size: int | None = None  # None: one micro-batch per step
    hosts: int = 1  # ranks are spread evenly over so many; more than 1 allows HYBRID_SHARD
    prefetch: int = 1  # units gathered ahead of the one in use
    objective: str = "throughput"  # one of OBJECTIVES
    at_least: float | None = None  # samples/s over all ranks that objective="memory" had to reach
    method: str = "exact"
    time_limit_s: float | None = None
    whole: tuple[str, ...] = ()  # patterns of what is NO_SHARD for sure
    small_unit_bytes: int = (
        256 * 2**10
    )  # neighbours join units of less (osdp.plan.unit_grouping.small_unit_bytes)
    replay: float = 0.5  # share that a plan chosen by playing may be worse than the best by the objective
    exposed: Annotated[float, AtLeast(0)] = (
        1.0  # how much longer a second of communication makes the objective's step
    )
    cost_version: Annotated[int, AtLeast(1)] = COST_VERSION  # Note [Cost versions]

    def costs(self) -> tuple[int, ...]:
        """The cost versions that the plan may be of."""
        return (1, 2) if self.cost_version == 1 else (self.cost_version,)
