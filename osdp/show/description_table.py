"""A description in a terminal: one row for operators that look alike."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_count
from osdp.description.model_description import ModelDescription
from osdp.plan.plan import Plan
from osdp.show.table_rows import ranged, sections
from osdp.show.terminal import row_count, row_name


def table(description: ModelDescription) -> RenderableType:
    """Parameters, what is saved for backward and the forward's flops of one sample; sums over alike operators."""
    found = Table(show_edge=False, pad_edge=False, box=None, header_style="bold", padding=(0, 2, 0, 0))
    found.add_column("operator", overflow="fold")
    found.add_column("kind", no_wrap=True)
    for name in ("parameters", "saved", "flops"):
        found.add_column(name, justify="right", no_wrap=True)
    for section in sections(Plan.uniform(description)):
        if section.blocks:
            count = f"{len(section.blocks)} equal" if len(section.blocks) > 1 else "block"
            found.add_row(ranged(section.blocks), count, style="bold")
        for row in section.rows:
            saved = sum(o.saved_bytes_per_sample for o in row.operators)
            flops = sum(o.flops_per_sample for o in row.operators)
            found.add_row(
                ("  " if section.blocks else "") + row_name(section, row),
                row.operator.kind,
                row_count(row),
                format_bytes(saved) if saved else "-",
                format_count(flops) if flops else "-",
            )
    return Group(Text(_headline(description), style="bold"), found)


def _headline(description: ModelDescription) -> str:
    elements = sum(p.elements for p in description.parameters)
    saved = sum(o.saved_bytes_per_sample for o in description.operators)
    watched = (
        f"{format_bytes(saved)} saved for backward per sample"
        if description.sample_batch
        else "described without a sample: activations are unknown"
    )
    return (
        f"{description.name}: {format_count(elements)} parameters ({format_bytes(description.parameter_bytes)}), "
        f"{len(description.operators)} operators, {len(description.blocks)} blocks that can be recomputed, {watched}"
    )
