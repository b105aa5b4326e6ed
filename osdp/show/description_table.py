"""A description in a terminal: one row for operators that look alike."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from osdp.base.byte_sizes import format_bytes
from osdp.base.numbers import format_count
from osdp.description.model_description import ModelDescription
from osdp.plan.plan import Plan
from osdp.show.fitting import Fitting, bare_table
from osdp.show.table_rows import ranged, sections
from osdp.show.terminal import NARROWEST_NAME, row_count, row_name

# From the most to the least.
_COLUMNS = (
    ("kind", "parameters", "saved", "flops"),
    ("parameters", "saved", "flops"),
    ("parameters", "saved"),
    ("parameters",),
)


def table(description: ModelDescription) -> RenderableType:
    """Parameters, what is saved for backward and the forward's flops of one sample; sums over alike operators."""
    tables = Fitting(_table(description, columns) for columns in _COLUMNS)
    return Group(Text(_headline(description), style="bold"), tables)


def _table(description: ModelDescription, columns: tuple[str, ...]) -> Table:
    found = bare_table()
    found.add_column("operator", overflow="fold", min_width=NARROWEST_NAME)
    for name in columns:
        found.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for section in sections(Plan.uniform(description)):
        if section.blocks:
            count = f"{len(section.blocks)} equal" if len(section.blocks) > 1 else "block"
            found.add_row(ranged(section.blocks), count, style="bold")
        for row in section.rows:
            saved = sum(o.saved_bytes_per_sample for o in row.operators)
            flops = sum(o.flops_per_sample for o in row.operators)
            cells = {
                "kind": row.operator.kind,
                "parameters": row_count(row),
                "saved": format_bytes(saved) if saved else "-",
                "flops": format_count(flops) if flops else "-",
            }
            name = ("  " if section.blocks else "") + row_name(section, row)
            found.add_row(name, *(cells[column] for column in columns))
    return found


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
