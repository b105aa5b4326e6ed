"""Finds frozen copies of trained modules.

Note [Frozen copies]
A momentum encoder (BYOL, DINO, Mean Teacher) is a frozen copy of a module that is trained. Between steps a script moves its
parameters towards those of the original, element by element, so each rank moves the part that it holds. Two parameters
of one shape that are sharded by rows have the same rows on a rank, and a whole one beside rows is an error of torch's,
since their shapes differ. But slices can be as long as rows and be other elements, so the average would be wrong without
an error. So neither the copy nor its original can be computed in slices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile

from osdp.base.names import joined


def frozen_copies(shapes: Mapping[str, Sequence[int]], trained: Collection[str]) -> set[str]:
    """`shapes`: of the parameters, by name. Returns the names of those in frozen copies and in their originals."""
    around: set[str] = set()  # modules with trained parameters
    for name in trained:
        around.update(_around(name))
    copies: dict[str, list[str]] = {}  # the outermost module without any -> its parameters' names in it
    for name in shapes:
        if name not in trained:
            root = next((m for m in _around(name) if m not in around), None)
            if root is not None:
                copies.setdefault(root, []).append(name.removeprefix(f"{root}."))
    by_last: dict[str, list[str]] = {}
    for name in trained:
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    found: set[str] = set()
    for outermost, names in copies.items():
        root = _innermost_around([f"{outermost}.{name}" for name in names])
        inside = [f"{outermost}.{name}".removeprefix(f"{root}.") for name in names]
        longest = max(inside, key=lambda name: name.count("."))
        for name in by_last.get(longest.rpartition(".")[2], ()):
            original = f".{name}".removesuffix(f".{longest}").removeprefix(".")
            if original == name or _same_but_for_a_number(root, original):
                continue
            pairs = [(f"{root}.{n}", joined(original, n)) for n in inside]
            if all(other in shapes and tuple(shapes[other]) == tuple(shapes[own]) for own, other in pairs):
                found.update(n for pair in pairs for n in pair)
    return found


def _around(name: str) -> Iterator[str]:
    """The modules around a parameter, the outermost first, without the root."""
    path = name.split(".")[:-1]
    for length in range(1, len(path) + 1):
        yield ".".join(path[:length])


def _innermost_around(names: Sequence[str]) -> str:
    """The innermost module around all of these parameters: a copy may be wrapped (`ema.module`)."""
    paths = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(at[0] for at in takewhile(lambda at: len(set(at)) == 1, paths))


def _same_but_for_a_number(one: str, other: str) -> bool:
    """Layers of one stack, some of which are frozen."""
    a, b = one.split("."), other.split(".")
    return len(a) == len(b) and all(
        x == y or (x.isdigit() and y.isdigit()) for x, y in zip(a, b, strict=True)
    )
