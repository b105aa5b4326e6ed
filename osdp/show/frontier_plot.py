"""Shows a frontier as a plot and as a table."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_seconds
from osdp.errors import InvalidProblemError

if TYPE_CHECKING:
    from osdp.plan.frontier import Frontier, FrontierPoint

_LIBRARIES = ("plotly", "matplotlib")
_X, _Y = "memory limit per rank (GiB)", "throughput (samples/s over all ranks)"
_LABELS = 10  # the maximum number of batch sizes written into the plot


def plot(frontier: Frontier, library: str | None = None, ax: Any = None) -> Any:
    """Plot throughput against the memory limit. Between two points the left one's throughput holds.

    `library`: "plotly" (gives a plotly Figure) or "matplotlib" (gives an Axes; `ax`: one to draw into); None:
    the first that is installed, matplotlib if `ax` is given. Raises InvalidProblemError if neither is
    installed, or there is nothing to draw.
    """
    if not frontier.points:
        raise InvalidProblemError("the frontier has no points: no plan fits any of its memory limits")
    if library is None:
        installed = [name for name in _LIBRARIES if importlib.util.find_spec(name) is not None]
        if not installed:
            raise InvalidProblemError("a plot needs matplotlib or plotly: pip install 'osdp[plot]'")
        library = "matplotlib" if ax is not None else installed[0]
    if library not in _LIBRARIES:
        raise InvalidProblemError(
            f"library must be one of {', '.join(map(repr, _LIBRARIES))}, got {library!r}"
        )
    if importlib.util.find_spec(library) is None:
        raise InvalidProblemError(f"{library} is not installed: pip install {library}")
    return _plotly(frontier.points) if library == "plotly" else _matplotlib(frontier.points, ax)


def table(frontier: Frontier) -> Table:
    """The points for a rich console."""
    found = Table(show_edge=False, pad_edge=False, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("memory limit", "samples/s", "step time", "batch per rank", "peak memory"):
        found.add_column(column, justify="right", no_wrap=True)
    for p in frontier.points:
        found.add_row(
            format_bytes(p.memory_limit_bytes),
            f"{p.throughput:.4g}",
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


def _matplotlib(points: Sequence[FrontierPoint], ax: Any) -> Any:
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

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
    ax.set_title("the best plan under each memory limit (b: batch per rank)", fontsize=10)
    return ax


def _plotly(points: Sequence[FrontierPoint]) -> Any:
    import plotly.graph_objects as go  # type: ignore[import-not-found, import-untyped, unused-ignore]

    line = go.Scatter(
        x=[_gib(p) for p in points],
        y=[p.throughput for p in points],
        mode="lines+markers",
        line={"shape": "hv"},
        hovertext=[
            f"{format_bytes(p.memory_limit_bytes)}: {p.throughput:.4g} samples/s<br>batch {p.batch_size} per rank, "
            f"{format_seconds(p.step_time_s)} a step<br>peak {format_bytes(p.peak_memory_bytes)}"
            for p in points
        ],
        hoverinfo="text",
    )
    layout = go.Layout(
        title="the best plan under each memory limit",
        xaxis={"title": _X, "type": "log"},
        yaxis={"title": _Y, "rangemode": "tozero"},
    )
    return go.Figure(line, layout)
