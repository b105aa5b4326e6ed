"""Prediction: what a plan is expected to take, per operator and in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class OperatorPrediction:
    """What the search predicts of one operator under its choice, per rank."""

    state_bytes: int  # parameters, gradients and optimizer state that stay
    saved_bytes: int  # activations, whole batch
    transient_bytes: int  # the largest full tensor that exists only while it is used
    communication_s: float
    compute_s: float
    reason: str  # one line for a person: why this choice


@dataclass(frozen=True)
class Prediction:
    """What one step takes, played event by event (`Plan.simulate`); with cost="paper" the paper's sum.

    Computation and communication are as long as they take beside each other; where both run at once, a step is
    shorter than their sum.
    """

    step_time_s: float
    throughput: float  # samples per second over all ranks
    peak_memory_bytes: int  # per rank, however long communication takes; cost="paper": the paper's sum
    communication_s: float
    compute_s: float
    optimizer_s: float
    operators: Mapping[str, OperatorPrediction] = field(default_factory=dict)
