"""The parts of a plan's predicted memory and time that are shown in plots and tables."""

from __future__ import annotations

from dataclasses import dataclass

from osdp.plan.plan import Plan
from osdp.plan.plan_fields import Prediction
from osdp.planning.core_inputs import beside_tensors
from osdp.planning.device_memory import Term, total


@dataclass(frozen=True)
class StepParts:
    """A step's time in parts that add up to it."""

    compute_s: float  # while nothing is communicated
    overlap_s: float  # computation and communication at the same time
    communication_s: float  # while nothing is computed
    optimizer_s: float

    @property
    def parts(self) -> list[tuple[str, float]]:
        return [
            ("computation", self.compute_s),
            ("both at once", self.overlap_s),
            ("communication", self.communication_s),
            ("optimizer", self.optimizer_s),
        ]


def step_parts(p: Prediction) -> StepParts:
    """The overlap is the difference between the parts' sum and the step."""
    hidden = p.communication_s + p.compute_s + p.optimizer_s - p.step_time_s
    if hidden < 1e-6 * p.step_time_s:  # rounding
        hidden = 0.0
    hidden = min(hidden, p.communication_s, p.compute_s)
    return StepParts(p.compute_s - hidden, hidden, p.communication_s - hidden, p.optimizer_s)


def memory_parts(plan: Plan) -> list[tuple[str, int]]:
    """The predicted peak in parts: parameters, gradients and optimizer state held throughout, a step's
    additional memory and, on accelerators, the device's memory besides tensors.
    """
    assert plan.predicted is not None
    peak = plan.predicted.peak_memory_bytes
    device = total(device_terms(plan))
    states = min(peak - device, sum(p.state_bytes for p in plan.predicted.operators.values()))
    parts = [("model state", states), ("activations and buffers", peak - states - device)]
    return [*parts, ("device", device)] if device else parts


def device_terms(plan: Plan) -> tuple[Term, ...]:
    """The part of the plan's predicted peak that is not in tensors; empty with cost="paper", which has no
    such terms."""
    if plan.hardware is None or plan.world_size is None or plan.cost != "osdp":
        return ()
    hosts, stage = (1, None) if plan.searched is None else (plan.searched.hosts, plan.searched.stage)
    return beside_tensors(
        plan.description,
        plan.hardware,
        plan.world_size,
        hosts,
        plan.optimizer,
        plan.separate_reductions,
        stage,
    )
