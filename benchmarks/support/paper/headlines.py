"""The paper's headlines: ours computed over the same baselines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from support.paper.cells import Cell, best

FIGURES = Path(__file__).parents[2] / "paper_figures.json"
PURE = ("DP", "GPipe", "TP", "FSDP")
Row = dict[str, Any]


def cell(row: Row, column: str) -> Cell:
    """Of the authors' batches the fastest, without recomputation: in one pass, or for other columns in micro-batches."""
    capped = row["capped"]
    return best(capped["none"].get(column) or capped["degrees"][column])


def in_micro_batches(row: Row, column: str) -> Cell:
    """The same samples a step, in micro-batches."""
    return best(row["capped"]["degrees"][column])


@dataclass(frozen=True)
class Gains:
    """Of ours over theirs, in percent, wherever both fit; `alone`: where ours fits and theirs does not."""

    percent: tuple[float, ...]
    alone: int

    @property
    def mean(self) -> float:
        return fmean(self.percent)


def gains(pairs: Iterable[tuple[Cell, Cell]]) -> Gains:
    both, alone = [], 0
    for ours, theirs in pairs:
        if "rate" in ours and "rate" in theirs:
            both.append(100 * (ours["rate"] / theirs["rate"] - 1))
        elif "rate" in ours and theirs["why"] == "OOM":
            alone += 1
    return Gains(tuple(both), alone)


def of_family(rows: Sequence[Row], family: str = "", hosts: int = 1) -> list[Row]:
    return [r for r in rows if r["hosts"] == hosts and family in r["model"]]


def over_pure(rows: Sequence[Row]) -> Gains:
    return gains((cell(r, "OSDP"), cell(r, c)) for r in rows for c in PURE)


def over(rows: Sequence[Row], theirs: str, ours: str = "OSDP") -> Gains:
    return gains((cell(r, ours), cell(r, theirs)) for r in rows)


def recomputed(rows: Sequence[Row], ours: str, theirs: Sequence[str]) -> Gains:
    """`ours`: "forced" or "free choice"; theirs: the fastest of these columns, "none" for FSDP without recomputation."""

    def fsdp(row: Row) -> Cell:
        known = row["capped"]["forced"] | {"none": row["capped"]["none"]["FSDP"]}
        return best([c for name in theirs for c in known[name]])

    return gains((best(r["capped"][ours]["OSDP"]), fsdp(r)) for r in rows)


OURS: dict[str, Callable[[Sequence[Row]], Gains]] = {
    "nd_fsdp": lambda rows: over(of_family(rows, "N&D"), "FSDP"),
    "nd_pure": lambda rows: over_pure(of_family(rows, "N&D")),
    "ws_pure": lambda rows: over_pure(of_family(rows, "W&S")),
    "ic_pure": lambda rows: over_pure(of_family(rows, "I&C")),
    "two_fsdp": lambda rows: over(of_family(rows, hosts=2), "FSDP"),
    "two_hybrid": lambda rows: gains(
        (cell(r, "OSDP"), best([cell(r, name) for name in ("FSDP", "FSDP, hybrid", "FSDP, hpZ")]))
        for r in of_family(rows, hosts=2)
    ),
    "script": lambda rows: gains(
        (none["OSDP"][0], none["FSDP"][0])
        for r in of_family(rows, "N&D 48x1536")
        if r["setting"].endswith(" 8 GB")
        for none in [r["capped"]["none"]]
    ),
    "3d": lambda rows: over(rows, "3D", "3D+OSDP"),
    "3d_others": lambda rows: gains((cell(r, "3D+OSDP"), in_micro_batches(r, c)) for r in rows for c in PURE),
    "splitting": lambda rows: over(of_family(rows), "OSDP-base"),
    "recomputation": lambda rows: recomputed(of_family(rows), "forced", ("FSDP",)),
}


def seconds(rows: Sequence[Row]) -> list[float]:
    """Of every search for OSDP under the authors' batches; what a search took that ran beside others, too."""
    return [c["search_s"] for r in rows for c in r["capped"]["none"]["OSDP"]]


def headline_rows(rows: Sequence[Row]) -> list[list[str]]:
    found = []
    for figure in json.loads(FIGURES.read_text()):
        theirs = {k: figure[k] for k in ("min", "mean", "max") if k in figure}
        if figure["id"] == "search_s":
            took = seconds(rows)
            ours = {"min": min(took), "max": max(took)}
            above = "faster" if ours["max"] < theirs["max"] and ours["min"] < theirs["min"] else "no"
            found.append([figure["claim"], "", _words(theirs), _words(ours, 2), str(len(took)), "", above])
            continue
        g = OURS[figure["id"]](rows)
        if not g.percent:
            found.append(
                [figure["claim"], figure["against"], _words(theirs, unit="%"), "-", "0", str(g.alone), "-"]
            )
            continue
        ours = {"min": min(g.percent), "mean": g.mean, "max": max(g.percent)}
        above = ", ".join(f"{k} {'yes' if ours[k] >= v else 'no'}" for k, v in theirs.items()) or "-"
        found.append(
            [
                figure["claim"],
                figure["against"],
                _words(theirs, unit="%") or "-",
                _words(ours, unit="%"),
                str(len(g.percent)),
                str(g.alone),
                above,
            ]
        )
    return found


def _words(figures: dict[str, float], digits: int = 1, unit: str = "") -> str:
    return ", ".join(f"{k} {v:.{digits}f}{unit}" for k, v in figures.items())
