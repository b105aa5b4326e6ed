"""Shows a plan in a notebook, as HTML with the contents of `osdp.show.terminal`. No scripts, no files; all
text is escaped."""

from __future__ import annotations

from html import escape

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_rate, format_seconds
from osdp.plan.plan import Plan
from osdp.show.plan_figures import memory_parts, step_parts
from osdp.show.table_rows import Row, Section, sections
from osdp.show.terminal import (
    RECOMPUTED,
    block_title,
    facts,
    memory_line,
    proof_line,
    row_count,
    row_figures,
    row_name,
)
from osdp.show.terminal import slices as slices_of

# Colours of text and background are the notebook's own. A mode's colour is mixed with the text's, so that its contrast is
# enough on light and on dark themes, whichever the notebook has and however it says so.
_MODE_COLORS = {
    "NO_SHARD": "#2e7d32",
    "SHARD_GRAD_OP": "#b26a00",
    "FULL_SHARD": "#00688b",
    "HYBRID_SHARD": "#8e24aa",
    "FULL_SHARD_HIERARCHICAL": "#5e35b1",
    "FULL_SHARD_HPZ": "#00838f",
    "FULL_SHARD_OFFLOAD": "#3949ab",
    "HYBRID_SHARD_OFFLOAD": "#c62828",
}
_MEMORY_COLORS = ("#4c78a8", "#9ecae9")
_TIME_COLORS = ("#54a24b", "#b8a13a", "#e45756", "#4c78a8")
_STYLE = (
    "<style>.osdp{font-size:13px}.osdp table{border-collapse:collapse;margin:.6em 0}"
    ".osdp td,.osdp th{padding:2px 10px 2px 0;text-align:right;border:0}"
    ".osdp td.l,.osdp th.l{text-align:left}.osdp tr.b td{padding-top:8px}"
    ".osdp .bar{display:flex;width:420px;height:14px;background:rgba(128,128,128,.25)}"
    ".osdp .key{display:inline-block;width:10px;height:10px;margin:0 4px 0 12px}</style>"
)


def html(plan: Plan) -> str:
    """A table of operators, bars of memory and time, and the proof."""
    head = f"<b>{escape(plan.description.name)}</b>: {escape(', '.join(facts(plan)))}"
    return f"{_STYLE}<div class='osdp'><div>{head}</div>{_table(plan)}{_bars(plan)}</div>"


def _table(plan: Plan) -> str:
    predicted = plan.predicted is not None and bool(plan.predicted.operators)
    sliced = any(choice.granularity > 1 for choice in plan.choices.values())
    columns = ["operator", "parameters", "mode"] + ["slices"] * sliced
    columns += ["state", "saved", "communication", "computation"] * predicted
    left = {"operator", "mode", "slices"}
    cells = "".join(f"<th{_left(c in left)}>{c}</th>" for c in columns)
    lines = [f"<tr>{cells}</tr>"]
    for section in sections(plan):
        if section.blocks:
            how = f" <i>{escape(RECOMPUTED[section.recompute])}</i>" if section.recompute else ""
            title = f"<b>{escape(block_title(section))}</b>{how}"
            lines.append(f"<tr class='b'><td class='l' colspan='{len(columns)}'>{title}</td></tr>")
        lines += [_row(section, row, sliced=sliced, predicted=predicted) for row in section.rows]
    return f"<table>{''.join(lines)}</table>"


def _row(section: Section, row: Row, *, sliced: bool, predicted: bool) -> str:
    indent = "padding-left:1.5em" if section.blocks else ""
    mode = row.choice.mode if row.choice else "-"
    cells = [
        f"<td class='l' style='{indent}'>{escape(row_name(section, row))}</td>",
        f"<td>{escape(row_count(row))}</td>",
        f"<td class='l'{_mode_style(mode)}>{escape(mode)}</td>",
    ]
    if sliced:
        cells.append(f"<td class='l'>{escape(slices_of(row.choice))}</td>")
    if predicted:
        cells += [f"<td>{escape(text)}</td>" for text in row_figures(row)]
    why = escape(row.predicted.reason, quote=True) if row.predicted else ""
    return f'<tr title="{why}">{"".join(cells)}</tr>'


def _mode_style(mode: str) -> str:
    color = _MODE_COLORS.get(mode)
    return f" style='color:color-mix(in srgb,currentColor 65%,{color})'" if color else ""


def _left(yes: bool) -> str:
    return " class='l'" if yes else ""


def _bars(plan: Plan) -> str:
    p = plan.predicted
    if p is None:
        return ""
    memory = [(name, float(size), format_bytes(size)) for name, size in memory_parts(plan)]
    time = [(name, s, format_seconds(s)) for name, s in step_parts(p).parts]
    whole = float(plan.memory_limit_bytes or p.peak_memory_bytes)
    throughput = f"{format_seconds(p.step_time_s)}, {format_rate(p.throughput)} samples/s over all ranks"
    parts = [
        f"<div>peak memory: {escape(memory_line(plan))}</div>{_bar(memory, whole, _MEMORY_COLORS)}",
        f"<div>step time: {escape(throughput)}</div>{_bar(time, p.step_time_s, _TIME_COLORS)}",
    ]
    if plan.certificate is not None:
        parts.append(f"<div>proof: {escape(proof_line(plan))}</div>")
    return "".join(f"<div style='margin-top:.5em'>{part}</div>" for part in parts)


def _bar(parts: list[tuple[str, float, str]], whole: float, colors: tuple[str, ...]) -> str:
    shares = [min(100.0, 100 * size / whole) if whole > 0 else 0.0 for _, size, _ in parts]
    filled = "".join(
        f"<div style='width:{share:.2f}%;background:{color}'></div>"
        for share, color in zip(shares, colors, strict=False)
    )
    legend = "".join(
        f"<span class='key' style='background:{color}'></span>{escape(name)} {escape(text)}"
        for (name, _, text), color in zip(parts, colors, strict=False)
    )
    return f"<div class='bar'>{filled}</div><div>{legend}</div>"
