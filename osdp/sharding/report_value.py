"""Report: predicted and measured figures as text, a table, a plot, or plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.drawn_once import drawn_once, pyplot
from osdp.base.numbers import format_seconds
from osdp.base.printed import Printed
from osdp.sharding.drift import Drift
from osdp.show.fitting import bare_table

_NO_METRICS = ("drift", "step_times_s", "assumed_machine")
_NOTICED = 0.15  # of a machine's speed: smaller changes may be noise of the measurement
_MORE = 1.02  # of the predicted peak: what is measured beyond that is explained
_PREDICTED, _MEASURED = "#4c78a8", "#f58518"


@dataclass(frozen=True, repr=False)
class Report(Printed):
    """Predicted (None for plans made by hand) and measured figures of this rank. Printable, also by rich."""

    predicted_step_time_s: float | None
    measured_step_time_s: float | None  # median; None before four steps
    predicted_peak_memory_bytes: int | None
    measured_peak_memory_bytes: int
    steps: int
    # For accelerators with a caching allocator: the part of the predicted peak that it reserves (all but
    # context and communicators), and the memory that it has reserved.
    predicted_reserved_bytes: int | None = None
    measured_reserved_bytes: int | None = None
    # The change of the machine's speed since the profile, and the step time predicted for the present speed;
    # None without a profile of this device, or if not requested.
    drift: Drift | None = None
    predicted_step_time_now_s: float | None = None
    step_times_s: tuple[float, ...] = ()  # of every step, the first two included
    # The plan's machine, where its figures were not measured: its times are not this machine's.
    assumed_machine: str | None = None

    def __rich__(self) -> RenderableType:
        return _table(self)

    def metrics(self, prefix: str = "osdp/") -> dict[str, float]:
        """The known figures as plain numbers, in seconds and bytes, for TensorBoard, W&B or a JSON file.

        >>> wandb.log(osdp.report(model, machine=False).metrics(), step=step)
        >>> for name, value in osdp.report(model, machine=False).metrics().items(): writer.add_scalar(name, value, step)
        """
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_METRICS}
        return {f"{prefix}{name}": value for name, value in named.items() if value is not None}

    def plot(self) -> Any:
        """A matplotlib Figure: the time of every step and the memory, predicted and measured. Raises InvalidProblemError
        without matplotlib.
        """
        return _plot(self)


def _rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """(what, predicted, measured, error)."""

    def row(
        name: str, predicted: float | None, measured: float | None, time: bool
    ) -> tuple[str, str, str, str]:
        show = format_seconds if time else _bytes
        comparable = not (time and report.assumed_machine)
        error = f"{(predicted - measured) / measured:+.1%}" if predicted and measured and comparable else ""
        return name, show(predicted) if predicted else "-", show(measured) if measured else "-", error

    yield row("step time", report.predicted_step_time_s, report.measured_step_time_s, True)
    if _change_of_speed(report):
        yield row("  as it is", report.predicted_step_time_now_s, report.measured_step_time_s, True)
    yield row("peak memory", report.predicted_peak_memory_bytes, report.measured_peak_memory_bytes, False)
    if report.measured_reserved_bytes is not None:
        yield row("reserved", report.predicted_reserved_bytes, report.measured_reserved_bytes, False)


def _notes(report: Report) -> Iterator[str]:
    yield f"({report.steps} steps)"
    if report.assumed_machine is not None:
        yield (
            f"The predicted time is for {report.assumed_machine} (assumed); "
            'to plan for this machine: osdp.search(..., hardware="this")'
        )
    if report.measured_peak_memory_bytes > _MORE * (report.predicted_peak_memory_bytes or float("inf")):
        yield (
            "More memory than predicted: what an optimizer allocates and frees within its step is not predicted. "
            "torch's AdamW allocates up to the size of all parameters of this rank, and nothing with fused=True."
        )
    if change := _change_of_speed(report):
        how = f"{change:.0%} slower" if change > 0 else f"{1 / (1 + change) - 1:.0%} faster"
        yield f"This machine is {how} for this plan than when it was profiled; 'as it is' predicts for that."


def _change_of_speed(report: Report) -> float:
    """How much longer the plan's step is predicted to take now than by the profile; 0.0 for what may be noise."""
    if report.predicted_step_time_now_s is None or not report.predicted_step_time_s:
        return 0.0
    ratio = report.predicted_step_time_now_s / report.predicted_step_time_s
    return 0.0 if 1 / (1 + _NOTICED) < ratio < 1 + _NOTICED else ratio - 1


def _table(report: Report) -> RenderableType:
    """The report as a table for rich."""
    table = bare_table()
    table.add_column("")
    for column in ("predicted", "measured", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in _rows(report):
        table.add_row(*row)
    return Group(table, *(Text(note, style="dim") for note in _notes(report)))


def _plot(report: Report) -> Any:
    """A matplotlib Figure."""
    plt = pyplot("a picture of a report")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", width_ratios=(2, 1))
    steps = range(1, len(report.step_times_s) + 1)
    left.plot(steps, [1e3 * s for s in report.step_times_s], color=_MEASURED, label="measured")
    if report.predicted_step_time_s is not None:
        left.axhline(1e3 * report.predicted_step_time_s, color=_PREDICTED, label="predicted")
    left.set_xlabel("step")
    left.set_ylabel("step time (ms)")
    left.set_ylim(bottom=0)
    left.legend(frameon=False)
    bars = {
        "peak\npredicted": (report.predicted_peak_memory_bytes, _PREDICTED),
        "peak\nmeasured": (report.measured_peak_memory_bytes, _MEASURED),
        "reserved\npredicted": (report.predicted_reserved_bytes, _PREDICTED),
        "reserved\nmeasured": (report.measured_reserved_bytes, _MEASURED),
    }
    known = {name: (size, colour) for name, (size, colour) in bars.items() if size is not None}
    right.bar(list(known), [size / 2**20 for size, _ in known.values()], color=[c for _, c in known.values()])
    right.set_ylabel("memory per rank (MiB)")
    return drawn_once(figure)


def _bytes(size: float) -> str:
    return format_bytes(int(size))
