"""Shows a plan in a terminal: a table grouped by equal blocks, memory against the limit, the step's time, the
proof."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from osdp import _search
from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import cells, format_count, format_rate, format_seconds
from osdp.plan.choice import Choice
from osdp.plan.plan import Plan
from osdp.show.fitting import Fitting, bare_table
from osdp.show.plan_figures import memory_parts, step_parts
from osdp.show.table_rows import Row, Section, ranged, sections

MODE_STYLES = {
    "NO_SHARD": "green",
    "SHARD_GRAD_OP": "yellow",
    "FULL_SHARD": "cyan",
    "HYBRID_SHARD": "magenta",
    "FULL_SHARD_HIERARCHICAL": "bright_blue",
    "FULL_SHARD_HPZ": "bright_cyan",
    "FULL_SHARD_OFFLOAD": "blue",
    "HYBRID_SHARD_OFFLOAD": "red",
}
RECOMPUTED = {
    "hold": "recomputed, parameters held for it",
    "regather": "recomputed, parameters gathered again",
}
_BAR_CELLS = 40
_SHADES = ("█", "▓", "▒", "•")  # distinguishable without colour
_PART_STYLES = ("green", "yellow", "red", "blue")


NARROWEST_NAME = 12  # columns of an operator's name before anything of it is folded
_IN_PARTS = ("state", "saved", "comm.", "compute")
# What the table shows beside the operator and its mode, from the most to the least.
_COLUMNS = (
    ("parameters", "slices", *_IN_PARTS),
    ("parameters", "slices", "memory", "time"),
    ("slices", "memory", "time"),
    ("memory", "time"),
    ("slices",),
    (),
)


class View:
    """A plan for a rich console; narrow consoles get fewer columns, so that no name is broken."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield headline(self.plan)
        yield Fitting(_table(self.plan, columns) for columns in _COLUMNS)
        yield from _bars(self.plan, options.max_width - 13)


def render(plan: Plan) -> RenderableType:
    """The plan for a rich console."""
    return View(plan)


def facts(plan: Plan) -> list[str]:
    """The plan's target and settings."""
    parameters = sum(p.elements for p in plan.description.parameters)
    ranks = "any number of ranks" if plan.world_size is None else f"{plan.world_size} ranks"
    micro = f" x {plan.accumulation} micro-batches" if plan.accumulation > 1 else ""
    if plan.searched is not None and plan.searched.batch_size is None:
        micro += " (auto: the largest that is tried)" if plan.batch_size == _search.MOST_BATCH else " (auto)"
    return [
        f"{format_count(parameters)} parameters ({format_bytes(plan.description.parameter_bytes)})",
        ranks + (f" of {plan.hardware.label}" if plan.hardware else ""),
        f"batch {plan.batch_size} per rank{micro}",
        f"{plan.optimizer}, {plan.precision}",
        f"{len(plan.units)} units",
    ]


def headline(plan: Plan) -> Text:
    return Text(f"{plan.description.name}: {', '.join(facts(plan))}", style="bold")


def slices(choice: Choice | None) -> str:
    """ "1/4 in": of four slices along the inputs one is sharded."""
    if choice is None or choice.granularity == 1:
        return ""
    return f"{choice.slices_sharded}/{choice.granularity} {choice.split}"


def _table(plan: Plan, columns: tuple[str, ...]) -> Table:
    predicted = plan.predicted is not None and bool(plan.predicted.operators)
    sliced = "slices" in columns and any(choice.granularity > 1 for choice in plan.choices.values())
    figures = tuple(name for name in columns if name not in ("parameters", "slices"))
    counted = "parameters" in columns
    table = bare_table()
    table.add_column("operator", overflow="fold", min_width=NARROWEST_NAME)
    if counted:
        table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    if sliced:
        table.add_column("slices", no_wrap=True)
    for name in figures if predicted else ():
        table.add_column(name, justify="right", no_wrap=True)
    for section in sections(plan):
        if section.blocks:
            count = f"{len(section.blocks)} equal" if len(section.blocks) > 1 else "block"
            how = f"recompute: {section.recompute}" if section.recompute else ""
            title = [ranged(section.blocks), count] if counted else [f"{ranged(section.blocks)}: {count}"]
            table.add_row(*title, Text(how, style="not bold italic"), style="bold")
        for row in section.rows:
            cells = [Text(("  " if section.blocks else "") + row_name(section, row))]
            cells += [Text(row_count(row))] if counted else []
            mode = row.choice.mode if row.choice else "-"
            cells.append(Text(mode, style=MODE_STYLES.get(mode, "")))
            if sliced:
                cells.append(Text(slices(row.choice)))
            if predicted and figures:
                cells += [Text(text) for text in row_figures(row, figures == _IN_PARTS)]
            table.add_row(*cells)
    return table


def block_title(section: Section) -> str:
    """ "blocks.0-11: 12 equal blocks"."""
    count = len(section.blocks)
    return ranged(section.blocks) + (f": {count} equal blocks" if count > 1 else "")


def row_name(section: Section, row: Row) -> str:
    """The operator's name inside its block, and the blocks if not all have the same choice."""
    part = section.part(row)
    return f"{row.place} [{part}]" if part else row.place


def row_count(row: Row) -> str:
    count = f"{len(row.names)} x " if len(row.names) > 1 else ""
    return count + format_count(row.elements) if row.elements else "-"


def row_figures(row: Row, wide: bool = True) -> list[str]:
    """State, saved activations, communication and computation, of all the row's operators in one step; if not `wide`,
    memory and time only.
    """
    p = row.predicted
    if p is None:
        return ["-"] * (4 if wide else 2)
    if not wide:
        return [_bytes(p.state_bytes + p.saved_bytes), _seconds(p.communication_s + p.compute_s)]
    return [_bytes(p.state_bytes), _bytes(p.saved_bytes), _seconds(p.communication_s), _seconds(p.compute_s)]


def _bytes(size: int) -> str:
    return format_bytes(size) if size else "-"


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _bars(plan: Plan, width: int) -> list[RenderableType]:
    if plan.predicted is None:
        return []
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("", "")
    peak, limit = plan.predicted.peak_memory_bytes, plan.memory_limit_bytes
    memory = memory_parts(plan)
    grid.add_row("peak memory", _bar([float(size) for _, size in memory], float(limit or peak)))
    grid.add_row("", memory_line(plan))
    grid.add_row("", _legend([(name, format_bytes(size)) for name, size in memory], width))
    parts = step_parts(plan.predicted).parts
    grid.add_row("step time", _bar([seconds for _, seconds in parts], plan.predicted.step_time_s))
    grid.add_row("", time_line(plan))
    grid.add_row("", _legend([(name, format_seconds(seconds)) for name, seconds in parts], width))
    if plan.certificate is not None:
        grid.add_row("proof", proof_line(plan))
    return [grid]


def _bar(parts: list[float], whole: float) -> Text:
    bar = Text()
    counts = cells(parts, whole, _BAR_CELLS)
    for count, shade, style in zip(counts, _SHADES, _PART_STYLES, strict=False):
        bar.append(shade * count, style)
    return bar.append("░" * (_BAR_CELLS - sum(counts)), "dim")


def _legend(parts: list[tuple[str, str]], width: int) -> Text:
    """In one line, or in pairs where `width` columns are too few for that."""
    one_line = sum(len(name) + len(value) + 5 for name, value in parts) <= width
    text = Text()
    for i, ((name, value), shade, style) in enumerate(zip(parts, _SHADES, _PART_STYLES, strict=False)):
        text.append("" if i == 0 else "  " if one_line or i % 2 else "\n")
        text.append(shade, style).append(f" {name} {value}")
    return text


def memory_line(plan: Plan) -> str:
    """Peak and limit in words."""
    assert plan.predicted is not None
    peak, limit = plan.predicted.peak_memory_bytes, plan.memory_limit_bytes
    on_host = sum(p.host_bytes for p in plan.predicted.operators.values())
    beside = f", {format_bytes(on_host)} in host memory" if on_host else ""
    if not limit:
        return f"{format_bytes(peak)} per rank, no limit{beside}"
    return f"{format_bytes(peak)} of {format_bytes(limit)} per rank ({peak / limit:.0%}){beside}"


def time_line(plan: Plan) -> str:
    """Time and throughput in words."""
    p = plan.predicted
    assert p is not None
    return f"{format_seconds(p.step_time_s)} a step, {format_rate(p.throughput)} samples/s over all ranks"


def proof_line(plan: Plan) -> str:
    """What the certificate says."""
    c = plan.certificate
    assert c is not None
    step = "a simulated step" if plan.cost == "osdp" else "a step"
    if c.step_bound_ps == 0:
        return "no bound on the step of other plans was proven"
    if c.optimal:
        return f"no plan in this search space has {step} that is faster (certificate attached)"
    return f"no plan in this search space has {step} more than {c.gap:.2%} faster (certificate attached)"
