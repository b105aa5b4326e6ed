"""Searched: what a plan was searched with, in full, so that it can be verified and searched again.

Its Stage is the place of a plan's part of a model in a pipeline, and among ranks that share its operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from osdp import _search
from osdp.base.schema import AtLeast

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
    prefetch: int | None = None  # units gathered ahead of the one in use; None: as many as are fastest
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


@dataclass(frozen=True)
class OperatorCollectives:
    """Seconds in which an operator of one micro-batch communicates inside its tensor-parallel group, while nothing else
    computes: in forward, which a recomputation repeats, and in backward."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Stage:
    """What a stage's search knows of the rest. A plan without pipeline and tensor parallelism has none.

    The plan's description is the stage's own: its operators, with the shapes that one rank of a tensor-parallel group
    holds. What a stage holds and communicates besides: Note [Stages of a pipeline] in csrc/search/problem/request.hpp.
    """

    index: Annotated[int, AtLeast(0)]  # of the stage
    stages: Annotated[int, AtLeast(1)]
    in_flight: Annotated[int, AtLeast(1)]  # micro-batches whose activations it holds at most
    micro_batches: Annotated[int, AtLeast(1)]  # of a step; equals the plan's accumulation
    tensor_parallel: Annotated[int, AtLeast(1)]  # ranks that share each operator
    collectives: Mapping[str, OperatorCollectives]  # of operators that communicate among these
    # That the schedule holds throughout: Note [What a schedule holds] in osdp/planning/degrees/schedule_memory.py.
    held_bytes: Annotated[int, AtLeast(0)] = 0
