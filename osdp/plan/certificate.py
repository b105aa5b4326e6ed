"""Certificate: the proof that a plan carries. `osdp.verify` checks it from the plan alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from osdp.base.schema import AtLeast


@dataclass(frozen=True)
class PhasePrice:
    """The Lagrange multiplier of one phase's memory, in ps per byte: numerator / the certificate's denominator."""

    phase: int  # index of the operator whose backward runs; -1: the sum over the whole step (cost="paper")
    numerator: int


@dataclass(frozen=True)
class Certificate:
    """Proof of optimality: the plan's time and memory, and a lower bound on the time of every plan (integers).

    `lower_bound_ps` holds for steps of this batch size and this largest transient, and can be checked from
    the multipliers alone. `search_bound_ps` is the bound that the whole search proved, over all batch sizes
    and transients, scaled to this plan's samples; `optimal` is True where it equals `time_ps`.
    """

    time_ps: int
    memory_bytes: int  # of the largest phase, including the reserve for transients
    limit_bytes: int  # on memory_bytes, for all plans in the proof; `memory_limit_bytes` is on the peak
    lower_bound_ps: int
    search_bound_ps: int
    prices: tuple[PhasePrice, ...]  # of the phases whose memory constraint is tight; empty where none is
    price_denominator: Annotated[int, AtLeast(1)]
    optimal: bool
    # Some plan that keeps the memory limit attains `search_bound_ps`: the optimum was proven, even if
    # `search`'s `replay` selected a different plan.
    proven: bool = False
    # A step of this plan as simulated, and a lower bound on the simulated step of every plan in the search space that
    # keeps the plan's memory limit, for as many samples (csrc/search/planner/step_proof.hpp). 0: not proven.
    step_ps: int = 0
    step_bound_ps: int = 0

    @property
    def step_gap(self) -> float | None:
        """How much faster the simulated step of another plan can be at most, as a fraction of this plan's; None: not
        proven."""
        return (self.step_ps - self.step_bound_ps) / self.step_ps if self.step_bound_ps else None

    @property
    def gap(self) -> float:
        """How much faster another plan can be at most, as a fraction of this plan's time; 0.0: no plan is
        faster."""
        return (self.time_ps - self.search_bound_ps) / self.time_ps if self.time_ps else 0.0
