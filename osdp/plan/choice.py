"""Choice: how one operator is sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from osdp import _search
from osdp.base.schema import AtLeast, OneOf
from osdp.description.model_description import Operator

# The names of csrc/modes.hpp.
MODES = _search.MODES
SPLITS = _search.SPLITS[1:]  # without "none"
RECOMPUTE = _search.RECOMPUTES[1:]


@dataclass(frozen=True)
class Choice:
    """How one operator is sharded.

    NO_SHARD, SHARD_GRAD_OP: granularity 1. FULL_SHARD: `granularity` slices, of which `sharded_slices`
    (default: all) are sharded and the rest kept in full on every rank; `split` says along which dimension of
    the weight: "out" (contiguous rows, no summation) or "in" (columns, outputs summed, as in the paper).

    >>> Choice("FULL_SHARD", granularity=4, sharded_slices=2, split="out")
    """

    mode: Annotated[str, OneOf(MODES)]
    granularity: Annotated[int, AtLeast(1)] = 1
    sharded_slices: Annotated[int, AtLeast(0)] | None = None
    split: Annotated[str, OneOf(SPLITS)] | None = None

    @property
    def traits(self) -> _search.ModeTraits:
        """What its mode means: `sharded`, `kept`, `inside_hosts`, `sliced` (csrc/modes.hpp)."""
        return _search.traits(self.mode)

    @property
    def slices_sharded(self) -> int:
        """How many of the `granularity` slices are sharded: 0 for NO_SHARD, all of them by default."""
        if not self.traits.sharded:
            return 0
        return self.granularity if self.sharded_slices is None else self.sharded_slices

    def __str__(self) -> str:
        if self.granularity == 1:
            return self.mode
        return f"{self.mode} {self.slices_sharded}/{self.granularity} slices ({self.split})"


def split_length(operator: Operator, split: str) -> int | None:
    """Length of the dimension that `split` ("out" or "in") cuts; None where the operator must stay whole."""
    if operator.split_shape is None:
        return None
    return operator.split_shape[0 if split == "out" else 1]
