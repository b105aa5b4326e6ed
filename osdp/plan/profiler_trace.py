"""A training step recorded by torch.profiler as a Timeline, to compare it with the predicted one.

    with torch.profiler.profile(profile_memory=True) as recording:  # one step of a sharded model
        loss = model(x); loss.backward(); optimizer.step()
    recording.export_chrome_trace("step.json")

The runtime labels profiler ranges by module and phase: "blocks.3 forward", "blocks.3 all-gather", "wait for
...". Time in the innermost running range counts as computation, except while it waits. On accelerators the
ranges show when the host launched work, not when the device executed it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from osdp.errors import FormatError
from osdp.plan.timeline import Timeline, TimelineEvent

COMPUTATION = {"forward": "forward", "recomputation": "recompute", "backward": "backward"}  # label -> phase
COMMUNICATION = (  # label -> resource, action; the longest first
    ("reduce-scatter between lines", "between hosts", "average"),
    ("all-reduce between lines", "between hosts", "average"),
    ("reduce-scatter", "communication", "reduce"),
    ("all-gather", "communication", "gather"),
    ("all-reduce", "communication", "all_reduce"),
)
_OPTIMIZER = "Optimizer.step#"
_WAITING = "wait for "
_US = 1e-6


class Range(NamedTuple):
    """A profiler range from `begin_s` to `end_s`; `label` is its phase, or what it waits for."""

    begin_s: float
    end_s: float
    name: str
    label: str


def read_trace(path: str | os.PathLike[str]) -> Timeline:
    """Read the step in a file written by `torch.profiler.profile().export_chrome_trace`. Its memory is
    relative to the memory held when recording began, and empty without `profile_memory=True`. Raises
    FormatError if the file is not such a trace, or has no range of a sharded model."""
    try:
        events = json.loads(Path(path).read_bytes())["traceEvents"]
        ranges = [(str(e["name"]), _span(e)) for e in events if e.get("ph") == "X"]
        sizes = [
            _size(e) for e in events if e.get("name") == "[memory]" and e["args"].get("Device Type") == 0
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: not a trace of torch.profiler: {type(error).__name__}: {error}", "traceEvents"
        ) from None
    computing = [r for name, span in ranges for r in _computing(name, span)]
    computing.sort(key=lambda r: (r.begin_s, -r.end_s))  # of two that begin together, the inner one last
    if not any(r.label in COMPUTATION.values() for r in computing):
        raise FormatError(
            f"{path}: the trace has no step of a sharded model: no range is named 'MODULE forward' or "
            "'MODULE backward'",
            "traceEvents",
        )
    computed = list(_innermost(computing))
    sent = [e for name, span in ranges if (e := _communicated(name, span, computed)) is not None]
    begin = min(e.begin_s for e in (*computed, *sent))
    end = max(e.end_s for e in (*computed, *sent))
    return _timeline(
        [*computed, *sent], begin, end, [(s - begin, n) for s, n in sorted(sizes) if begin <= s <= end]
    )


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    begin = float(event["ts"])
    return begin * _US, (begin + float(event["dur"])) * _US


def _size(event: Mapping[str, Any]) -> tuple[float, int]:
    return float(event["ts"]) * _US, int(event["args"]["Total Allocated"])


def _computing(name: str, span: tuple[float, float]) -> Iterator[Range]:
    if name.startswith(_WAITING):
        yield Range(*span, name, "")
    elif name.startswith(_OPTIMIZER):
        yield Range(*span, "", "optimizer")
    else:
        module, _, label = name.rpartition(" ")
        if module and label in COMPUTATION:
            yield Range(*span, "" if module == "model" else module, COMPUTATION[label])


def _communicated(
    name: str, span: tuple[float, float], computed: list[TimelineEvent]
) -> TimelineEvent | None:
    if name.startswith(_WAITING):
        return None
    for label, resource, action in COMMUNICATION:
        if name.endswith(f" {label}"):
            before = [e for e in computed if e.begin_s <= span[0]]
            phase = before[-1].phase if before else "forward"
            return TimelineEvent(resource, action, phase, name.removesuffix(f" {label}"), *span)
    return None


def _innermost(ranges: list[Range]) -> Iterator[TimelineEvent]:
    """At each moment the running range that began last, or nothing while that one waits. `ranges` are sorted
    by begin."""
    moments = sorted({m for r in ranges for m in (r.begin_s, r.end_s)})
    running: list[Range] = []
    coming = iter([*ranges, None])
    following = next(coming)
    piece: TimelineEvent | None = None
    for begin, end in pairwise(moments):
        while following is not None and following.begin_s <= begin:
            running.append(following)
            following = next(coming)
        running = [r for r in running if r.end_s > begin]
        top = running[-1] if running else None
        if (
            piece is not None
            and top is not None
            and (piece.end_s, piece.name, piece.phase) == (begin, top.name, top.label)
        ):
            piece = TimelineEvent("computation", "compute", top.label, top.name, piece.begin_s, end)
            continue
        if piece is not None:
            yield piece
        piece = None
        if top is not None and top.label:
            piece = TimelineEvent("computation", "compute", top.label, top.name, begin, end)
    if piece is not None:
        yield piece


def _timeline(
    events: list[TimelineEvent], begin: float, end: float, memory: list[tuple[float, int]]
) -> Timeline:
    moved = sorted(
        (
            TimelineEvent(e.resource, e.action, e.phase, e.name, e.begin_s - begin, e.end_s - begin)
            for e in events
        ),
        key=lambda e: (e.begin_s, e.end_s),
    )
    computing = [e for e in moved if e.resource == "computation" and e.phase != "optimizer"]
    communicating = [e for e in moved if e.resource != "computation"]
    compute_s, communication_s = _covered(computing), _covered(communicating)
    first = memory[0][1] if memory else 0
    held = [(0.0, 0), *((s, size - first) for s, size in memory)] if memory else []
    return Timeline(
        step_time_s=end - begin,
        compute_s=compute_s,
        communication_s=communication_s,
        overlap_s=compute_s + communication_s - _covered([*computing, *communicating]),
        optimizer_s=sum(e.end_s - e.begin_s for e in moved if e.phase == "optimizer"),
        peak_memory_bytes=max((size for _, size in held), default=0),
        events=tuple(moved),
        memory=tuple(held),
    )


def _covered(events: Iterable[TimelineEvent]) -> float:
    """Seconds in which at least one of the events runs."""
    total, until = 0.0, 0.0
    for e in sorted(events, key=lambda e: e.begin_s):
        total += max(0.0, e.end_s - max(e.begin_s, until))
        until = max(until, e.end_s)
    return total
