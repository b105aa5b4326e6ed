"""Timeline: a simulated training step as plain values, which can be exported to Perfetto, plotted and
printed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from osdp.base import json_files
from osdp.base.byte_sizes import format_bytes
from osdp.base.later_methods import function_of
from osdp.base.numbers import format_seconds
from osdp.base.printed import Printed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# Each runs one event at a time. "reductions" is used with separate_reductions only; else they run on
# "communication".
RESOURCES = ("computation", "communication", "reductions", "between hosts")


@dataclass(frozen=True)
class TimelineEvent:
    """One event on a rank, from `begin_s` to `end_s` after the step's beginning."""

    resource: str  # of RESOURCES
    action: str  # "compute", "gather", "reduce", "average" (HYBRID_SHARD's, between hosts), "all_reduce"
    phase: str  # of the step: "forward", "recompute", "backward", "optimizer"
    name: str  # of the operator, or of the unit that is gathered or reduced
    begin_s: float
    end_s: float


@dataclass(frozen=True, repr=False)
class Timeline(Printed):
    """One training step of one rank; it is the same on all ranks. Printable; `rich.print` also draws it.

    At every moment the rank computes, communicates, or does both: step_time_s is compute_s + communication_s
    - overlap_s + optimizer_s, each including its slowdown by the other. Time in which two collectives run
    concurrently counts once.
    """

    step_time_s: float
    compute_s: float  # forward, backward, recomputation
    communication_s: float
    overlap_s: float  # of both
    optimizer_s: float
    peak_memory_bytes: int
    events: tuple[TimelineEvent, ...]  # by begin
    memory: tuple[tuple[float, int], ...]  # (seconds, bytes held from then on)
    largest_peak_bytes: int | None = None  # over all timings of communication; None: a measured step
    machine: str = ""  # that was simulated, "a100-8 (assumed)"; "": a measured step

    @property
    def exposed_communication_s(self) -> float:
        """Seconds in which the rank waits for the others."""
        return self.communication_s - self.overlap_s

    def to_json(self) -> str:
        """The timeline as JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def of_trace(path: str | os.PathLike[str]) -> Timeline:
        """Read a training step recorded by torch.profiler from the file of `export_chrome_trace`: see
        `profiler_trace`."""
        recorded: Timeline = function_of("Timeline.of_trace")(path)
        return recorded

    def chrome_trace(self, measured: Timeline | None = None) -> dict[str, Any]:
        """The timeline in Chrome's trace format, for https://ui.perfetto.dev and chrome://tracing: a track
        per resource and the memory as a counter; `measured`, if given, is a second process.
        """
        trace = self._trace(0)
        if measured is not None:
            for pid, what in enumerate(("predicted", "measured")):
                trace.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": what}})
            trace += measured._trace(1)
        return {"traceEvents": trace, "displayTimeUnit": "ms"}

    def _trace(self, pid: int) -> list[dict[str, Any]]:
        used = {e.resource for e in self.events}
        rows = {name: row for row, name in enumerate(RESOURCES, 1) if name in used}
        trace: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": row, "args": {"name": name}}
            for name, row in rows.items()
        ]
        for e in self.events:
            trace.append(
                {
                    "ph": "X",
                    "name": e.name or "(root)" if e.resource == "computation" else f"{e.name} {e.action}",
                    "cat": e.phase,
                    "pid": pid,
                    "tid": rows[e.resource],
                    "ts": e.begin_s * 1e6,
                    "dur": (e.end_s - e.begin_s) * 1e6,
                }
            )
        for moment, size in self.memory:
            trace.append(
                {"ph": "C", "name": "memory", "pid": pid, "ts": moment * 1e6, "args": {"bytes": size}}
            )
        return trace

    def save_trace(self, path: str | os.PathLike[str], measured: Timeline | None = None) -> None:
        """Write `chrome_trace` to `path` atomically."""
        json_files.save_text(path, json.dumps(self.chrome_trace(measured)))

    def plot(self, measured: Timeline | None = None) -> Any:
        """A matplotlib Figure of the events and the memory, with those of `measured` if given:
        `osdp.show.timeline_plot.plot`.

        >>> plan.simulate().plot(osdp.Timeline.of_trace("recorded.json")).savefig("step.svg")
        """
        return function_of("Timeline.plot")(self, measured)

    def beside(self, measured: Timeline) -> Beside:
        """This step next to the measured one, for printing in a terminal."""
        return Beside(self, measured)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield function_of("Timeline.__rich_console__")(self, options.max_width)
        yield ""
        yield str(self)

    def parts(self) -> dict[str, float]:
        """Seconds of the step and of its parts, by name."""
        return {
            "step": self.step_time_s,
            "computation": self.compute_s,
            "communication": self.communication_s,
            "of it beside computation": self.overlap_s,
            "optimizer": self.optimizer_s,
        }

    def __str__(self) -> str:
        lines = [f"{name:26}{format_seconds(seconds):>10}" for name, seconds in self.parts().items()]
        lines.append(f"{'peak memory':26}{format_bytes(self.peak_memory_bytes):>10}")
        return "\n".join(lines + _machine(self))


@dataclass(frozen=True, repr=False)
class Beside(Printed):
    """A predicted and a measured step. Printable; `rich.print` also draws both, on one scale."""

    predicted: Timeline
    measured: Timeline

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest_s = max(self.predicted.step_time_s, self.measured.step_time_s)
        for what, step in (("predicted", self.predicted), ("measured", self.measured)):
            yield what
            yield function_of("Timeline.__rich_console__")(step, options.max_width, longest_s)
            yield ""
        yield str(self)

    def __str__(self) -> str:
        measured = self.measured.parts()
        lines = [f"{'':26}{'predicted':>12}{'measured':>12}"]
        for name, seconds in self.predicted.parts().items():
            lines.append(f"{name:26}{format_seconds(seconds):>12}{format_seconds(measured[name]):>12}")
        grown = [_grown_bytes(step) for step in (self.predicted, self.measured)]
        shown = [format_bytes(size) if size is not None else "-" for size in grown]
        lines.append(f"{'memory above the beginning':26}{shown[0]:>12}{shown[1]:>12}")
        return "\n".join(lines + _machine(self.predicted))


def _machine(step: Timeline) -> list[str]:
    return [f"simulated for {step.machine}"] if step.machine else []


def _grown_bytes(step: Timeline) -> int | None:
    """The peak relative to the memory held when the step begins; None where no memory was recorded."""
    return step.peak_memory_bytes - step.memory[0][1] if step.memory else None
