"""Stage: the place of a plan's part of a model in a pipeline, and among ranks that share its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from osdp.base.schema import AtLeast


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
