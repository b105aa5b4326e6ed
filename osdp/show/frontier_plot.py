"""Shows a frontier as a plot and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from osdp.base.byte_sizes import format_bytes
from osdp.base.drawn_once import pyplot
from osdp.base.numbers import format_rate, format_seconds
from osdp.errors import InvalidProblemError
from osdp.show.fitting import bare_table

if TYPE_CHECKING:
    from osdp.plan.frontier import Frontier, FrontierPoint

_X, _Y = "memory limit per rank (GiB)", "throughput (samples/s over all ranks)"
_LABELS = 10  # the maximum number of batch sizes written into the plot


def plot(frontier: Frontier, ax: Any = None) -> Any:
    """Plot throughput against the memory limit, into matplotlib's Axes `ax` or new ones, which it returns. Between two
    points the left one's throughput holds. Raises InvalidProblemError without matplotlib, or if there is nothing to draw.
    """
    points = frontier.points
    if not points:
        raise InvalidProblemError("the frontier has no points: no plan fits any of its memory limits")
    plt = pyplot("a plot")
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.step([_gib(p) for p in points], [p.throughput for p in points], where="post", color="#4c78a8")
    ax.plot([_gib(p) for p in points], [p.throughput for p in points], "o", markersize=4, color="#4c78a8")
    for p in labelled(points):
        at = (_gib(p), p.throughput)
        ax.annotate(
            f"b={p.batch_size}", at, (3, -12), textcoords="offset points", fontsize=8, color="#666666"
        )
    ax.set_xlabel(_X)
    ax.set_ylabel(_Y)
    ax.set_ylim(bottom=0)
    ax.set_xscale("log", base=2)  # as the limits of a frontier are spread
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.grid(alpha=0.3)
    on = f", {frontier.machine}" if frontier.machine else ""
    ax.set_title(f"the best plan under each memory limit{on} (b: batch per rank)", fontsize=10)
    return ax


def table(frontier: Frontier) -> Table:
    """The points for a rich console."""
    title = f"simulated for {frontier.machine}" if frontier.machine else None
    found = bare_table(title=title, title_justify="left", title_style="not italic")
    for column in ("memory limit", "samples/s", "step time", "batch per rank", "peak memory"):
        found.add_column(column, justify="right", no_wrap=True)
    for p in frontier.points:
        found.add_row(
            format_bytes(p.memory_limit_bytes),
            format_rate(p.throughput),
            format_seconds(p.step_time_s),
            str(p.batch_size),
            format_bytes(p.peak_memory_bytes),
        )
    return found


def _gib(p: FrontierPoint) -> float:
    return p.memory_limit_bytes / 2**30


def labelled(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """The points at which to write the batch size: where it changes, thinned out evenly, including the first
    and last."""
    changes = [p for i, p in enumerate(points) if i == 0 or p.batch_size != points[i - 1].batch_size]
    if len(changes) <= _LABELS:
        return changes
    return [changes[round(i * (len(changes) - 1) / (_LABELS - 1))] for i in range(_LABELS)]
