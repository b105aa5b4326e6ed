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

    `mode` is NO_SHARD, SHARD_GRAD_OP, FULL_SHARD or HYBRID_SHARD; FULL_SHARD_HPZ and FULL_SHARD_HIERARCHICAL are FULL_SHARD
    that gathers between hosts first, then inside (docs/runtime.md#full_shard-in-two-levels); FULL_SHARD_OFFLOAD or
    HYBRID_SHARD_OFFLOAD are the same with this rank's part in host memory. With FULL_SHARD a Linear, Embedding, convolution
    or transformers' Conv1D can be computed in `granularity` slices, of which `sharded_slices` (default: all) are sharded
    and the others are kept in full on every rank; with FULL_SHARD_OFFLOAD, too, where all are sharded. In all other cases
    `granularity` is 1. `split` is the dimension of the
    weight that is sliced: "out" (no summation) or "in" (outputs are summed, as in the paper); a convolution's is "out".
    Slices of the rows of the stored weight differ by one row at most; those of its columns are equal.

    >>> Choice("FULL_SHARD", granularity=4, sharded_slices=2, split="out")
    """

    mode: Annotated[str, OneOf(MODES)]
    granularity: Annotated[int, AtLeast(1)] = 1
    sharded_slices: Annotated[int, AtLeast(0)] | None = None
    split: Annotated[str, OneOf(SPLITS)] | None = None

    @property
    def traits(self) -> _search.ModeTraits:
        """The properties of the mode, such as `sharded`, `kept` and `inside_hosts`: ModeTraits in csrc/modes.hpp."""
        return _search.traits(self.mode)

    @property
    def slices_sharded(self) -> int:
        """The number of sharded slices, of `granularity` in all: 0 for NO_SHARD, by default all."""
        if not self.traits.sharded:
            return 0
        return self.granularity if self.sharded_slices is None else self.sharded_slices

    def __str__(self) -> str:
        if self.granularity == 1:
            return self.mode
        return f"{self.mode} {self.slices_sharded}/{self.granularity} slices ({self.split})"


def uneven(operator: Operator, split: str) -> bool:
    """Whether slices along `split` may differ by one: they are of the rows of the weight as it is stored."""
    return (split == "out") != operator.transposed


def fits(operator: Operator, granularity: int, split: str) -> bool:
    """Whether the operator can be computed in so many slices along `split`."""
    length = split_length(operator, split)
    if operator.kernel_places and split != "out":
        return False
    return length is not None and _search.slices_fit(length, granularity, uneven(operator, split))


def split_length(operator: Operator, split: str) -> int | None:
    """Length of the dimension that `split` ("out" or "in") slices; None if the operator cannot be sliced."""
    if operator.split_shape is None:
        return None
    return operator.split_shape[0 if split == "out" else 1]
