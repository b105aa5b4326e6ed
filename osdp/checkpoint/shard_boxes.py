"""Pieces: the parts of a full tensor that a rank holds, and their positions in its local tensor.

    full weight [8, 6], FULL_SHARD, 2 ranks            split "in" into 2 slices, slice 0 kept in full, slice 1 sharded
      rank 0: rows 0-3  one piece at (0, 0) [4, 6]       rank 0: slice 0 at (0, 0) [8, 3], rows 0-3 of slice 1 at (0, 3)
      rank 1: rows 4-7  one piece at (4, 0) [4, 6]       rank 1: slice 0 at (0, 0) [8, 3], rows 4-7 of slice 1 at (4, 3)

An optimizer's state of the parameter's local shape (`exp_avg`, ...) consists of the same pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Piece(Protocol):
    """A box of the full tensor, held by this rank."""

    @property
    def global_offsets(self) -> tuple[int, ...]: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def replicated(self) -> bool:
        """True if every rank holds the same piece."""

    def view(self, local: Tensor) -> Tensor:
        """This piece inside a tensor of the parameter's local shape: shares its memory, has the shape `sizes`."""


@dataclass(frozen=True)
class WholePiece:
    """All of a tensor that every rank holds: an unsharded parameter, a buffer, an optimizer's step count."""

    sizes: tuple[int, ...]
    replicated: bool = True

    @property
    def global_offsets(self) -> tuple[int, ...]:
        return (0,) * len(self.sizes)

    def view(self, local: Tensor) -> Tensor:
        return local


@dataclass(frozen=True)
class Chunk:
    """A box of a full tensor and this rank's memory that holds it; the unit of writing and reading."""

    offsets: tuple[int, ...]
    tensor: Tensor  # shape: the box's; a view of the parameter or of the optimizer's state
    replicated: bool


def elements(shape: Sequence[int]) -> int:
    """The number of elements of a shape; 1 for a scalar.

    >>> elements((2, 3))
    6
    """
    n = 1
    for size in shape:
        n *= size
    return n


def chunks(pieces: Sequence[Piece], local: Tensor, limit_bytes: int) -> list[Chunk]:
    """The pieces of `local`, cut along their first dimension longer than 1 into boxes of at most `limit_bytes`.

    The limit bounds the memory that a reader with a different layout needs besides its own tensors, since it
    reads whole boxes. A replicated piece is divided in the same way on every rank, so that its boxes can be
    distributed over the ranks. Empty pieces have no boxes. A box may exceed the limit if a single row does.
    """
    result: list[Chunk] = []
    for piece in pieces:
        tensor = piece.view(local.detach())
        if tensor.numel() == 0:
            continue
        dim = next((d for d, size in enumerate(tensor.shape) if size > 1), None)
        if dim is None:
            result.append(Chunk(tuple(piece.global_offsets), tensor, piece.replicated))
            continue
        row_bytes = tensor.numel() // tensor.shape[dim] * tensor.element_size()
        rows = max(1, limit_bytes // row_bytes)
        for first in range(0, tensor.shape[dim], rows):
            offsets = list(piece.global_offsets)
            offsets[dim] += first
            part = tensor.narrow(dim, first, min(rows, tensor.shape[dim] - first))
            result.append(Chunk(tuple(offsets), part, piece.replicated))
    return result
