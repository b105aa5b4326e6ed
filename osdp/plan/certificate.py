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
    # Weights of the two forms of the bound, in 1024ths of the compute form: Note [Step bound] in
    # csrc/search/problem/step_bound.hpp.
    forward_share: Annotated[int, AtLeast(0)]
    backward_share: Annotated[int, AtLeast(0)]
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
