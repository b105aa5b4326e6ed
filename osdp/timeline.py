"""Timeline: a played training step as plain values, for programs, Perfetto and people."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from osdp import serial

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# One thing at a time runs on each. "reductions": where a plan has separate_reductions; else they are communication.
RESOURCES = ("computation", "communication", "reductions", "between hosts")


@dataclass(frozen=True)
class TimelineEvent:
    """One thing that a rank does, from `begin_s` to `end_s` after the step's beginning."""

    resource: str  # of RESOURCES
    action: str  # "compute", "gather", "reduce", "average" (HYBRID_SHARD's, between hosts), "all_reduce"
    phase: str  # of the step: "forward", "recompute", "backward", "optimizer"
    name: str  # of the operator, or of the unit that is gathered or reduced
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One training step of one rank; all ranks do the same. Printable; `rich.print` also draws it.

    At every moment it computes, communicates, or both: step_time_s is compute_s + communication_s - overlap_s +
    optimizer_s, each as long as it takes beside the other. Where two things are communicated at once, that time
    counts once.
    """

    step_time_s: float
    compute_s: float  # forward, backward, recomputation
    communication_s: float
    overlap_s: float  # of both
    optimizer_s: float
    peak_memory_bytes: int
    events: tuple[TimelineEvent, ...]  # by begin
    memory: tuple[tuple[float, int], ...]  # (seconds, bytes held from then on)

    @property
    def exposed_communication_s(self) -> float:
        """Seconds in which the rank waits for the others."""
        return self.communication_s - self.overlap_s

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(asdict(self))

    def chrome_trace(self) -> dict[str, Any]:
        """In Chrome's trace format, which https://ui.perfetto.dev and chrome://tracing show: a track per resource and
        the memory as a counter.
        """
        used = {e.resource for e in self.events}
        rows = {name: row for row, name in enumerate(RESOURCES, 1) if name in used}
        trace: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
            for name, row in rows.items()
        ]
        for e in self.events:
            trace.append(
                {
                    "ph": "X",
                    "name": e.name or "(root)" if e.resource == "computation" else f"{e.name} {e.action}",
                    "cat": e.phase,
                    "pid": 0,
                    "tid": rows[e.resource],
                    "ts": e.begin_s * 1e6,
                    "dur": (e.end_s - e.begin_s) * 1e6,
                }
            )
        for moment, size in self.memory:
            trace.append({"ph": "C", "name": "memory", "pid": 0, "ts": moment * 1e6, "args": {"bytes": size}})
        return {"traceEvents": trace, "displayTimeUnit": "ms"}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write `chrome_trace` to `path`: whole or not at all."""
        serial.save_text(path, json.dumps(self.chrome_trace()))

    def plot(self) -> Any:
        """A matplotlib Figure of what runs when and of the memory: `osdp.timeline_picture.plot`.

        >>> plan.simulate().plot().savefig("step.svg")
        """
        from osdp.timeline_picture import plot

        return plot(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from osdp.timeline_picture import in_terminal

        yield in_terminal(self, options.max_width)
        yield ""
        yield str(self)

    def __str__(self) -> str:
        from osdp.figures import format_seconds
        from osdp.sizes import format_bytes

        parts = {
            "step": self.step_time_s,
            "computation": self.compute_s,
            "communication": self.communication_s,
            "of it beside computation": self.overlap_s,
            "optimizer": self.optimizer_s,
        }
        lines = [f"{name:26}{format_seconds(seconds):>10}" for name, seconds in parts.items()]
        lines.append(f"{'peak memory':26}{format_bytes(self.peak_memory_bytes):>10}")
        return "\n".join(lines)
