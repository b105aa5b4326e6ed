"""What a forward or its backward allocates and frees, in order; its moments and kernels follow from that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from osdp.description.kernels import Call

# What an entry is about, besides the number of a storage.
COMPLETED, TEMPORARY, CALL = -1, -2, -3


class Entry(NamedTuple):
    """One line of the log."""

    number: int  # of the storage, or one of the above
    bytes: int  # allocated; negative: freed
    running: str  # the module
    what: str | Call | None = None  # the parameter that is complete, or the call


class Event(NamedTuple):
    """An entry of which is known whether it was a gradient's, so that it stands for itself."""

    # "live", "waiting" (a gradient that autograd keeps for a sum), "temporary", "completed", "made", "nothing" (a
    # gradient's, which counts elsewhere), "call"
    kind: str
    bytes: int
    running: str
    what: str | Call | None = None


class Moment(NamedTuple):
    """A stretch of a forward or backward in which one module runs and no gradient becomes complete."""

    bytes: int  # the maximum
    running: str  # the module
    completed: str | None  # the parameter whose gradient ended it
    # The parameter whose gradient's memory begins at its end, and its bytes.
    made: tuple[str, int] | None = None
    in_slices: int = -1  # the maximum without gradients that wait for a sum; -1: the same


def moments_of(events: Iterable[Event], live: int) -> tuple[list[Moment], int]:
    """The moments of the events from `live` bytes on, and the bytes after them."""
    moments: list[Moment] = []
    most, module = live, None
    waiting, in_slices = 0, live  # of `live`; the maximum without it

    def moment(running: str, completed: str | None = None, made: tuple[str, int] | None = None) -> None:
        nonlocal most, in_slices
        moments.append(Moment(most, running, completed, made, in_slices))
        most, in_slices = live, live - waiting

    for kind, size, running, what in events:
        if kind == "call":
            continue
        if running != module:
            if module is not None:
                moment(module)
            module = running
        if kind == "completed":
            assert isinstance(what, str)
            moment(running, what)
        elif kind == "made":
            assert isinstance(what, str)
            moment(running, None, (what, size))
        elif kind in ("live", "waiting", "temporary"):
            kept = 0 if kind == "temporary" else size
            live += kept
            waiting += size if kind == "waiting" else 0
            most = max(most, live + size - kept)
            in_slices = max(in_slices, live + size - kept - waiting)
    if module is not None:
        moment(module)
    return moments, live


def calls_of(events: Iterable[Event]) -> dict[str, list[Call]]:
    """The kernels by module."""
    calls: dict[str, list[Call]] = {}
    for event in events:
        if isinstance(event.what, Call):
            calls.setdefault(event.running, []).append(event.what)
    return calls
