"""Prediction: expected time and memory of a plan, per operator and in total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OperatorPrediction:
    """The search's prediction for one operator under its choice, per rank."""

    state_bytes: int  # parameters, gradients and optimizer state held throughout
    saved_bytes: int  # activations, whole batch
    transient_bytes: int  # the largest full tensor that exists only while it is used
    communication_s: float
    compute_s: float
    reason: str  # one readable line: why this choice
    host_bytes: int = 0  # the same as state_bytes, in host memory: of an offloaded operator


@dataclass(frozen=True)
class Prediction:
    """Time and memory of one step, simulated event by event (`Plan.simulate`); with cost="paper" the paper's sum.

    Durations of computation and communication include their slowdown while both run; since they overlap, a
    step is shorter than their sum.
    """

    step_time_s: float
    throughput: float  # samples per second over all ranks
    peak_memory_bytes: int  # per rank, over all timings of communication; cost="paper": the paper's sum
    communication_s: float
    compute_s: float
    optimizer_s: float
    operators: Mapping[str, OperatorPrediction] = field(default_factory=dict)
