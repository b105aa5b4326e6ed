"""Boxes: parts of a full tensor and their positions in a checkpoint's files. They tile the tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Annotated, NamedTuple

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
