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
    rows, alone_s = found["rows"], found["alone_s"]
    times = [abs(time_error(r, alone_s)) for r in rows]
    peaks = [abs(peak_error(r)) for r in rows]
    certified = [certified_error(r) for r in rows if r["certified_bytes"]]
    return {
        "time, mean": fmean(times),
        "worst": max(times),
        "spread": median(spread(r) for r in rows),
        "peak, mean": fmean(peaks),
        "peak, worst": max(peaks),
        "certified, least": min(certified),
        "certified, most": max(certified),
        "regret": regret(rows),
    }


def show(found: Mapping[str, Any]) -> None:
    table = Table(title="played or certified over measured, less 1", title_justify="left")
    table.add_column("")
    columns: list[str] = []
    for key, each in found.items():
        row = summary(each)
        if not columns:
            columns = list(row)
            for column in columns:
                table.add_column(column, justify="right")
        table.add_row(key, *(f"{row[c]:+.1%}" if "certified" in c else f"{row[c]:.1%}" for c in columns))
    Console(width=150).print(table)
