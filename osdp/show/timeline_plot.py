"""Plots a simulated step: the events on each resource, and the memory over time. In a terminal, or with
matplotlib, which writes SVG.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from osdp.base.drawn_once import drawn_once, pyplot
from osdp.base.numbers import format_seconds
from osdp.plan.timeline import RESOURCES, Timeline

if TYPE_CHECKING:
    from osdp.plan.timeline import TimelineEvent

_SHADES = " ░▒▓█"  # of a cell: the busy fraction of its time
_HEIGHTS = " ▁▂▃▄▅▆▇█"  # of the peak
# By phase: in a terminal, and by matplotlib.
_STYLES = {"forward": "blue", "recompute": "yellow", "backward": "green", "optimizer": "magenta"}
_COLOURS = {"forward": "#4c78a8", "recompute": "#eeca3b", "backward": "#54a24b", "optimizer": "#b279a2"}
_MEMORY_COLOUR = "#e45756"
_LABEL = 15  # columns


def rows(timeline: Timeline) -> dict[str, list[TimelineEvent]]:
    """The events of each resource that is used."""
    found = {name: [e for e in timeline.events if e.resource == name] for name in RESOURCES}
    return {name: events for name, events in found.items() if events}


def busy(events: list[TimelineEvent], step_s: float, cells: int) -> list[tuple[float, str]]:
    """For each of `cells` equal parts of a step: the fraction in which one of `events` runs, and its
    predominant phase."""
    seconds: list[Counter[str]] = [Counter() for _ in range(cells)]
    cell_s = step_s / cells
    for e in events:
        for i in range(min(cells - 1, int(e.begin_s / cell_s)), min(cells, int(e.end_s / cell_s) + 1)):
            inside = min(e.end_s, (i + 1) * cell_s) - max(e.begin_s, i * cell_s)
            seconds[i][e.phase] += max(0.0, inside)  # type: ignore[assignment]
    return [(min(1.0, sum(s.values()) / cell_s), s.most_common(1)[0][0] if s else "") for s in seconds]


def most_held(timeline: Timeline, cells: int) -> list[int]:
    """For each of `cells` equal parts of the step: the maximum of the bytes held in it."""
    most = [0] * cells
    if not timeline.memory:  # of a step that was recorded without it
        return most
    cell_s = timeline.step_time_s / cells
    ends = [*(moment for moment, _ in timeline.memory[1:]), timeline.step_time_s]
    for (begin, size), end in zip(timeline.memory, ends, strict=True):
        for i in range(min(cells - 1, int(begin / cell_s)), min(cells, int(end / cell_s) + 1)):
            most[i] = max(most[i], size)
    return most


def in_terminal(timeline: Timeline, width: int = 100, longest_s: float | None = None) -> Group:
    """A line per resource, darker where more of the time something runs; below, the memory, of its peak. As wide as
    a step of `longest_s` would need, where that is given, on a line of `width`.
    """
    share_of_line = timeline.step_time_s / longest_s if longest_s else 1.0
    cells = max(10, round((width - _LABEL - 1) * share_of_line))
    lines = []
    for name, events in rows(timeline).items():
        line = Text(f"{name:{_LABEL}}", no_wrap=True)
        for share, phase in busy(events, timeline.step_time_s, cells):
            shade = _SHADES[max(share > 0, round(share * (len(_SHADES) - 1)))]
            line.append(shade, style=_STYLES.get(phase, ""))
        lines.append(line)
    peak = max(1, timeline.peak_memory_bytes)
    curve = "".join(
        _HEIGHTS[max(size > 0, round(size / peak * (len(_HEIGHTS) - 1)))]
        for size in most_held(timeline, cells)
    )
    lines.append(Text(f"{'memory':{_LABEL}}{curve}", no_wrap=True))
    end = format_seconds(timeline.step_time_s)
    lines.append(Text(f"{'':{_LABEL}}0{end:>{cells - 1}}", no_wrap=True))
    legend = Text(f"{'':{_LABEL}}")
    for phase in dict.fromkeys(e.phase for e in timeline.events):
        legend.append("█", style=_STYLES.get(phase, "")).append(f" {phase}  ")
    return Group(*lines, legend)


def plot(timeline: Timeline, measured: Timeline | None = None) -> Any:
    """A matplotlib Figure: the resources, and below them the memory; of a measured step a row under each of the predicted,
    and its memory as a line, from what is predicted to be held when the step begins. Raises InvalidProblemError without
    matplotlib.
    """
    plt = pyplot("a picture of a time line")
    steps = {"": timeline} if measured is None else {", predicted": timeline, ", measured": measured}
    used = {
        f"{name}{what}": rows(step)[name]
        for name in RESOURCES
        for what, step in steps.items()
        if name in rows(step)
    }
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(10, 2.5 + 0.5 * len(used)), layout="constrained", height_ratios=(2, 1)
    )
    for row, events in enumerate(used.values()):
        above.broken_barh(
            [(e.begin_s * 1e3, (e.end_s - e.begin_s) * 1e3) for e in events],
            (-row - 0.4, 0.8),
            color=[_COLOURS.get(e.phase, "#888888") for e in events],
            edgecolor="white",
            linewidth=0.2,
        )
    above.set_yticks([-row for row in range(len(used))], list(used))
    for phase in dict.fromkeys(e.phase for step in steps.values() for e in step.events):
        above.plot([], [], color=_COLOURS.get(phase, "#888888"), linewidth=6, label=phase)
    above.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    moments, sizes = _curve(timeline)
    below.fill_between(moments, sizes, step="post", color=_MEMORY_COLOUR, alpha=0.5, label="predicted")
    if measured is not None and measured.memory:
        moments, grown = _curve(measured)
        begun = timeline.memory[0][1] / 2**20
        below.step(
            moments,
            [begun + size for size in grown],
            where="post",
            color="black",
            linewidth=0.8,
            label="measured",
        )
        below.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    below.set_ylabel("memory (MiB)")
    below.set_ylim(bottom=0)
    below.set_xlabel("time (ms)")
    return drawn_once(figure)


def _curve(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Milliseconds and MiB, to the step's end."""
    moments = [*(moment * 1e3 for moment, _ in timeline.memory), timeline.step_time_s * 1e3]
    sizes = [size / 2**20 for _, size in timeline.memory]
    return moments, [*sizes, sizes[-1]]
