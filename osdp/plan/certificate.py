"""Certificate: the proof that a plan carries. `osdp.verify` checks it from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from osdp.base.schema import AtLeast


@dataclass(frozen=True)
class PhasePrice:
    """The Lagrange multiplier of one phase's memory: numerator / the certificate's denominator, ps per byte."""

    phase: int  # index of the operator whose backward runs; -1: the sum over the whole step (cost="paper")
    numerator: int


@dataclass(frozen=True)
class Certificate:
    """Proof of optimality: cost and memory of the plan, and a lower bound that none undercuts (integers).

    `lower_bound_ps` is for a step of this batch size and this largest transient: anybody can check it from the
    multipliers. `search_bound_ps` is what the whole search proved, over all batch sizes and transients, scaled to
    this plan's samples; `optimal` where that is `time_ps`.
    """

    time_ps: int
    memory_bytes: int  # the largest phase, with room for transients
    limit_bytes: int  # of memory_bytes, and of all plans that this is about; the plan's own peak keeps `memory_limit_bytes`
    lower_bound_ps: int
    search_bound_ps: int
    prices: tuple[PhasePrice, ...]  # of the phases that bind; none where memory is no limit
    price_denominator: Annotated[int, AtLeast(1)]
    optimal: bool
    # Some plan takes `search_bound_ps`: the optimum was proven, also where this plan is not it (`search`'s `replay`).
    proven: bool = False

    @property
    def gap(self) -> float:
        """How much faster another plan may be at most, as a share of this plan's time; 0.0: none is."""
        return (self.time_ps - self.search_bound_ps) / self.time_ps if self.time_ps else 0.0
