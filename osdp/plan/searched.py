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
# The terms of the cost model in certificates and predictions, by version. `osdp.verify` checks a plan with the plan's own
# version: a change of the search's costs must raise kCostVersion in csrc/search/problem/request.hpp and keep the code that
# checks older plans. A change of the simulator must raise it too: simulated times of older plans are not compared.
#   1: the first. Without modules' buffers, the gradient copies that mixed precision averages, and parameters that one module
#      reads several times; memory is reserved for tied parameters whatever their choice.
#   2: with these; files before version 4 do not record which of the two they have, so either is accepted (`Searched.costs`).
#   3: operators' working memory, and the gradient being computed, in their own phase; a reserve of 1 + prefetch units, not
#      2 + prefetch.
#   4: on accelerators, 2 + prefetch again: a gradient is still being reduced while the next parameters are gathered.
#   5: with several micro-batches, the part of a gradient that is added to the sum of the earlier ones.
#   6: with one micro-batch, under mixed precision, the gradient that completes a NO_SHARD bucket.
#   7: as 6; the predicted peak is the played step's, without the copies for averaging gradients on top of it.
#      The simulator counts what a transfer takes from computation exactly, not in thousandths of its time.
#   8: as 7; the played step holds the float sums of split products in 16 bits.
#   9: as 8; where kernels are priced, products of slices take what their own thin shapes take, at the batch size that is
#      searched for, or that of the sample. (They took a launch each longer than the whole.)
#   10: as 9; with copies of NO_SHARD slices in the compute dtype, buffers of small tensors that are sent together, means
#       that are cast, and units of modules called several times from the begin of backward on.
#       A unit with frozen parameters is released after its reduction has begun.
COST_VERSION = _search.COST_VERSION


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
    small_unit_bytes: int = (
        256 * 2**10
    )  # smaller units are merged with neighbours (osdp.plan.unit_grouping.small_unit_bytes)
    gap: Annotated[float, AtLeast(0)] = 0.005  # of the simulated step and its bound, at which the search ends
    cost_version: Annotated[int, AtLeast(1)] = COST_VERSION  # Note [Cost versions]
