"""The table of benchmarks/truth.py: errors of what was played and certified, beside the machine's own spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]


def ratios(row: Row) -> list[float]:
    """Of every turn: the plan's step over the bare model's."""
    return [own / beside for own, beside in zip(row["step_s"], row["bare_s"], strict=True)]


def half_quartiles(turns: Sequence[float]) -> float:
    """Half of what lies between the quartiles, relative."""
    low, middle, high = quantiles(turns, n=4)
    return (high - low) / 2 / middle


def spread(row: Row) -> float:
    """How far the machine alone moves that ratio."""
    return half_quartiles(ratios(row))


def time_error(row: Row, alone_s: float) -> float:
    """Of the played step on the machine as fast as it was in these turns; in older files both sides are relative to the
    bare model's.
    """
    if "played_now_s" in row:
        return row["played_now_s"] / median(row["step_s"]) - 1
    return row["played_s"] / alone_s / median(ratios(row)) - 1


def peak_error(row: Row) -> float:
    return row["played_bytes"] / row["peak_bytes"] - 1


def certified_error(row: Row) -> float:
    return row["certified_bytes"] / row["peak_bytes"] - 1


def rival_of(row: Row, rows: Sequence[Row]) -> str | None:
    """The plan under the limit of a searched one that seemed fastest; None where that is the searched one itself."""
    if not row["limit_bytes"]:
        return None
    fits = [r for r in rows if (r["certified_bytes"] or r["played_bytes"]) <= row["limit_bytes"]]
    best = min(fits, key=lambda r: median(ratios(r)), default=row)
    return None if best["plan"] == row["plan"] else str(best["plan"])


def rematches(rows: Sequence[Row]) -> list[list[float]]:
    """Of each searched plan that had a rival, and each turn: its step over the rival's."""
    matches = [r["rematch"] for r in rows if "rematch" in r]
    return [[a / b for a, b in zip(m["own_s"], m["rival_s"], strict=True)] for m in matches]


def regret(rows: Sequence[Row]) -> dict[str, float]:
    """By how much a searched plan's step is longer than its rival's, measured in turns; 0 where it has none."""
    matches = rematches(rows)
    slower = [max(0.0, median(turns) - 1) for turns in matches]
    searched = sum(bool(r["limit_bytes"]) for r in rows)
    return {
        "regret, mean": sum(slower) / searched,
        "regret, worst": max(slower, default=0.0),
        "its spread": median(map(half_quartiles, matches)) if matches else 0.0,
    }


def summary(found: Mapping[str, Any]) -> dict[str, float]:
    timed = any(r["step_s"] for r in found["rows"])
    return {**(time_summary(found["rows"], found["alone_s"]) if timed else {}), **peak_summary(found["rows"])}


def time_summary(rows: Sequence[Row], alone_s: float) -> dict[str, float]:
    times = [abs(time_error(r, alone_s)) for r in rows]
    spreads = [spread(r) for r in rows]
    return {
        "time, mean": fmean(times),
        "worst": max(times),
        "spread": median(spreads),
        "within 5% or spread": fmean(t <= max(0.05, s) for t, s in zip(times, spreads, strict=True)),
        **regret(rows),
    }


def peak_summary(rows: Sequence[Row]) -> dict[str, float]:
    peaks = [abs(peak_error(r)) for r in rows]
    certified = [certified_error(r) for r in rows if r["certified_bytes"]]
    return {
        "peak, mean": fmean(peaks),
        "peak, worst": max(peaks),
        "certified, least": min(certified),
        "certified, most": max(certified),
    }


def show(found: Mapping[str, Any]) -> None:
    table = Table(title="played or certified over measured, less 1", title_justify="left")
    table.add_column("")
    rows = {key: summary(each) for key, each in found.items()}
    columns = list(dict.fromkeys(c for row in rows.values() for c in row))
    for column in columns:
        table.add_column(column, justify="right")
    for key, row in rows.items():
        figures = (
            f"{row[c]:+.1%}" if "certified" in c else f"{row[c]:.1%}" if c in row else "" for c in columns
        )
        table.add_row(key, *figures)
    Console(width=150).print(table)
