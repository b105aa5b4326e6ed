"""Tables for consoles of any width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

_UNBOUNDED = 10_000  # columns


def bare_table(**more: Any) -> Table:
    """Columns without lines around them."""
    return Table(show_edge=False, pad_edge=False, box=None, header_style="bold", padding=(0, 2, 0, 0), **more)


class Fitting:
    """Of several tables of the same thing, from the widest to the narrowest, the first in which nothing is broken into
    lines; else the last."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self.tables = tuple(tables)  # may be shown more than once

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=_UNBOUNDED)
        fitting = (t for t in self.tables if t.__rich_measure__(console, wide).maximum <= options.max_width)
        yield next(fitting, self.tables[-1])
