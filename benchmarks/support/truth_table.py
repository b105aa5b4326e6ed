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


def spread(row: Row) -> float:
    """How far the machine alone moves that ratio: half of what lies between its quartiles, relative."""
    low, middle, high = quantiles(ratios(row), n=4)
    return (high - low) / 2 / middle


def time_error(row: Row, alone_s: float) -> float:
    """Of the played step, both sides relative to the bare model's."""
    return row["played_s"] / alone_s / median(ratios(row)) - 1


def peak_error(row: Row) -> float:
    return row["played_bytes"] / row["peak_bytes"] - 1


def certified_error(row: Row) -> float:
    return row["certified_bytes"] / row["peak_bytes"] - 1


def regret(rows: Sequence[Row]) -> float:
    """The most by which a searched plan's step is longer than that of the best plan that stays under its limit."""
    worst = 0.0
    for row in rows:
        if row["limit_bytes"]:
            fits = [
                median(ratios(r))
                for r in rows
                if (r["certified_bytes"] or r["played_bytes"]) <= row["limit_bytes"]
            ]
            worst = max(worst, median(ratios(row)) / min(fits, default=median(ratios(row))) - 1)
    return worst


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
        "regret": regret(rows),
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
