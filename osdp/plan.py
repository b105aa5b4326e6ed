"""Plan: the decision, as a value. The only thing that passes from deciding (search) to doing (fully_shard)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osdp.description import ModelDescription
from osdp.hardware import Hardware

MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
SPLITS = ("out", "in")
RECOMPUTE = ("hold", "regather")


@dataclass(frozen=True)
class Choice:
    """How one operator is sharded.

    NO_SHARD, SHARD_GRAD_OP: granularity 1. FULL_SHARD: `granularity` slices, of which `sharded_slices` (default: all)
    are sharded and the rest kept in full on every rank; `split` says along which dimension of the weight:
    "out" (contiguous rows, no summation) or "in" (columns, outputs summed, as in the paper).

    >>> Choice("FULL_SHARD", granularity=4, sharded_slices=2, split="out")
    """

    mode: str
    granularity: int = 1
    sharded_slices: int | None = None
    split: str | None = None


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
    step_time_s: float
    throughput: float  # samples per second over all ranks
    peak_memory_bytes: int  # per rank
    communication_s: float
    compute_s: float
    optimizer_s: float
    operators: Mapping[str, OperatorPrediction] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """Proof of optimality: cost and memory of the plan, and a lower bound that no plan undercuts (integers)."""

    time_ps: int
    memory_bytes: int
    limit_bytes: int
    lower_bound_ps: int
    multiplier_numerator: int  # Lagrange multiplier of memory, ps per byte, as a fraction
    multiplier_denominator: int
    optimal: bool


@dataclass(frozen=True)
class Plan:
    """A choice per operator, recomputation per block, units, and what it was made for."""

    description: ModelDescription
    hardware: Hardware | None
    world_size: int | None  # None: any (a plan made by hand)
    choices: Mapping[str, Choice]  # operator name -> Choice; exactly the operators that have parameters
    units: tuple[tuple[str, ...], ...]  # names gathered and reduced together: neighbours of one mode; covers all choices
    recompute: Mapping[str, str] = field(default_factory=dict)  # block name -> "hold" | "regather"
    batch_size: int = 1  # per rank
    optimizer: str = "adamw"
    precision: str = "fp32"
    cost: str = "osdp"
    memory_limit_bytes: int | None = None
    predicted: Prediction | None = None
    certificate: Certificate | None = None
