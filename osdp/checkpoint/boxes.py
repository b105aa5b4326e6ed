"""Boxes: parts of a full tensor and their positions in a checkpoint's files. They tile the tensor.

Chunks, of pieces: the parts of a full tensor that a rank holds, and their positions in its local tensor.

    full weight [8, 6], FULL_SHARD, 2 ranks            split "in" into 2 slices, slice 0 kept in full, slice 1 sharded
      rank 0: rows 0-3  one piece at (0, 0) [4, 6]       rank 0: slice 0 at (0, 0) [8, 3], rows 0-3 of slice 1 at (0, 3)
      rank 1: rows 4-7  one piece at (4, 0) [4, 6]       rank 1: slice 0 at (0, 0) [8, 3], rows 4-7 of slice 1 at (4, 3)

An optimizer's state of the parameter's local shape (`exp_avg`, ...) consists of the same pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, NamedTuple, Protocol

from torch import Tensor

from osdp.base.schema import AtLeast

Count = Annotated[int, AtLeast(0)]
# A Box in a manifest.
Row = tuple[tuple[Count, ...], tuple[Count, ...], str, Count, Count, Count]

MAX_CUT_DIMENSIONS = 8  # along which a tensor may be divided into boxes; OSDP uses two


class Box(NamedTuple):
    """A box of a full tensor, stored by torch.save as `length` bytes from `begin` in `file`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int
    crc32: int  # of these bytes


def tile(shape: Sequence[int], boxes: Iterable[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Whether boxes (offsets, sizes) are disjoint and together cover a tensor of `shape`.

    >>> tile((4, 6), [((0, 0), (4, 3)), ((0, 3), (4, 3))])
    True

    Note [Boxes that tile]
    Mark each corner of a box with +1, or -1 where an odd number of its coordinates are upper ends. Summing the marks of
    all points that lie at or before an element gives 1 for an element inside the box and 0 outside, so marks
    and covered elements determine each other: boxes cover every element of the tensor exactly once if and
    only if the sum of their marks equals the marks of the whole tensor. This takes linear time for any boxes.
    Dimensions that no box divides are omitted.
    """
    held = list(boxes)
    if any(
        len(offsets) != len(shape)
        or len(sizes) != len(shape)
        or min((*sizes, 1)) < 1
        or min((*offsets, 0)) < 0
        for offsets, sizes in held
    ):
        return False
    if 0 in shape:
        return not held
    cut = [d for d, size in enumerate(shape) if any(o[d] != 0 or n[d] != size for o, n in held)]
    if len(cut) > MAX_CUT_DIMENSIONS:
        return False
    marks: Counter[tuple[int, ...]] = Counter()
    whole = [((0,) * len(shape), shape)]
    for sign, some in ((1, held), (-1, whole)):
        for offsets, sizes in some:
            ends = [((offsets[d], 1), (offsets[d] + sizes[d], -1)) for d in cut]
            for corner in product(*ends):
                mark = sign
                for _, of_end in corner:
                    mark *= of_end
                marks[tuple(at for at, _ in corner)] += mark
    return not any(marks.values())


def apart(boxes: Iterable[Box]) -> Box | None:
    """The first box that overlaps another one in a file; None if all are disjoint."""
    end: dict[str, int] = {}
    for box in sorted(boxes, key=lambda b: (b.file, b.begin, b.length)):
        if box.begin < end.get(box.file, 0):
            return box
        end[box.file] = box.begin + box.length
    return None


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
