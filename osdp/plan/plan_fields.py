"""The fields of a plan; Plan adds the methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from osdp.base.schema import AtLeast, OneOf
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.certificate import Certificate
from osdp.plan.choice import RECOMPUTE, Choice
from osdp.plan.prediction import Prediction
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
