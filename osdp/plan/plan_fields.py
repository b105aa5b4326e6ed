"""The fields of a plan, to which Plan adds the methods: among them Prediction, the expected time and memory, per operator
and in total, and Certificate, the proof, which `osdp.verify` checks from the plan alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from osdp.base.schema import AtLeast, OneOf
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.choice import RECOMPUTE, Choice
from osdp.plan.searched import Searched


@dataclass(frozen=True, repr=False)
class PlanFields:
    """The fields of a plan's file, in its order."""

    description: ModelDescription
    hardware: Hardware | None
    world_size: Annotated[int, AtLeast(1)] | None  # None: any (plans made by hand)
    choices: Mapping[str, Choice]  # operator name -> Choice; exactly the operators that have parameters
    units: tuple[tuple[str, ...], ...]  # gathered and reduced together; one mode each; covers all choices
    recompute: Mapping[str, Annotated[str, OneOf(RECOMPUTE)]] = field(default_factory=dict)  # by block's name
    batch_size: Annotated[int, AtLeast(1)] = 1  # per rank
    optimizer: str = "adamw"
    precision: str = "fp32"
    cost: str = "osdp"
    memory_limit_bytes: int | None = None
    accumulation: Annotated[int, AtLeast(1)] = 1  # micro-batches of `batch_size` in one optimizer step
    prefetch: Annotated[int, AtLeast(0)] = 1  # units gathered ahead of the one in use
    # Units are gathered ahead while they and the one in use take no more; 0: than 1 + `prefetch` of the largest size.
    gather_bytes: Annotated[int, AtLeast(0)] = 0
    separate_reductions: bool = False  # concurrent with gathers, on their own communicator; not on CPUs
    searched: Searched | None = None  # the arguments of the search; None: made by hand
    predicted: Prediction | None = None
    certificate: Certificate | None = None


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


@dataclass(frozen=True)
class PhasePrice:
    """The Lagrange multiplier of one phase's memory, in ps per byte: numerator / the certificate's denominator."""

    phase: int  # index of the operator whose backward runs; -1: the sum over the whole step (cost="paper")
    numerator: int


@dataclass(frozen=True)
class BatchProof:
    """Prices of memory that prove a lower bound for plans of these batch sizes and this accumulation."""

    least_batch: Annotated[int, AtLeast(1)]
    most_batch: Annotated[int, AtLeast(1)]
    accumulation: Annotated[int, AtLeast(1)]
    prices: tuple[PhasePrice, ...]  # of the phases whose memory constraint is tight; empty where none is


@dataclass(frozen=True)
class Certificate:
    """How fast the step of any plan can be: of the search space, within the plan's memory limit (integers).

    The step is the simulated one; with cost="paper", the paper's. `step_bound_ps` is what the search proved;
    `checked_bound_ps` is what `batches` prove by themselves, without a search: at most `step_bound_ps`, since a search also
    lists plans.
    """

    step_ps: Annotated[int, AtLeast(0)]  # of this plan
    step_bound_ps: Annotated[int, AtLeast(0)]  # of every plan, for as many samples; 0: nothing was proven
    checked_bound_ps: Annotated[int, AtLeast(0)]
    # Weights of the forms of the bound, in 1024ths: of the compute form in forward and in backward, and in backward of
    # those of the link, of averages and of reductions. Note [Step bound] in csrc/search/problem/step_bound.hpp.
    forward_share: Annotated[int, AtLeast(0)]
    backward_share: Annotated[int, AtLeast(0)]
    link_share: Annotated[int, AtLeast(0)]
    averages_share: Annotated[int, AtLeast(0)]
    reductions_share: Annotated[int, AtLeast(0)]
    batches: tuple[BatchProof, ...]  # ascending; together all batch sizes of the search
    price_denominator: Annotated[int, AtLeast(1)]

    @property
    def gap(self) -> float:
        """How much faster the step of another plan can be at most, as a fraction of this plan's; 0.0: no plan is
        faster, 1.0: nothing was proven."""
        return 1 - self.step_bound_ps / self.step_ps if self.step_ps else 0.0

    @property
    def checked_gap(self) -> float:
        """The same, of what can be checked without a search."""
        return 1 - self.checked_bound_ps / self.step_ps if self.step_ps else 0.0

    @property
    def optimal(self) -> bool:
        """No plan is faster."""
        return self.step_bound_ps == self.step_ps


def parameters_with(plan: PlanFields, trait: str) -> set[str]:
    """Names of the parameters whose operators' modes have this property: see `Choice.traits`."""
    operators = (o for o in plan.description.operators if o.name in plan.choices)
    return {p.name for o in operators if getattr(plan.choices[o.name].traits, trait) for p in o.parameters}
