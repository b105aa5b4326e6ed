"""Tables in Markdown, and their cells in words."""

from __future__ import annotations

from collections.abc import Sequence

from support.paper.cells import Cell
from support.paper.headlines import Gains, Row, gains


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]


def shown(c: Cell, row: Row) -> str:
    """Sequences per second."""
    return f"{c['rate'] * row['sequences']:.0f}" if "rate" in c else str(c["why"])


def gain(ours: Cell, theirs: Cell) -> str:
    g = gains([(ours, theirs)])
    return f"{g.percent[0]:+.1f}%" if g.percent else "only OSDP fits" if g.alone else "-"


def said(g: Gains) -> str:
    if not g.percent:
        return f"only OSDP fits ({g.alone})" if g.alone else "-"
    words = f"{g.mean:+.1f}% ({min(g.percent):+.1f} to {max(g.percent):+.1f})"
    return words + (f", {g.alone} fit OSDP alone" if g.alone else "")
