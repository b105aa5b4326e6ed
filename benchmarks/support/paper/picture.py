"""The paper's two figures of throughput, with our figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.paper.headlines import cell
from support.paper.strategy_tables import COLUMNS

COLORS = {
    "DP": "#bab0ac",
    "GPipe": "#b5cf6b",
    "TP": "#e7ba52",
    "FSDP": "#e45756",
    "3D": "#9d755d",
    "OSDP-base": "#9ecae9",
    "OSDP": "#4c78a8",
    "3D+OSDP": "#1f3f66",
}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """A panel for each setting; sequences per second of each model and strategy, 1 to 3 units."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "osdp"  # equal figures make an equal file
    from matplotlib import pyplot

    rows = found["rows"]
    settings = list(dict.fromkeys(r["setting"] for r in rows))
    figure, panels = pyplot.subplots(len(settings), 1, figsize=(10, 3 * len(settings)), layout="constrained")
    for axes, setting in zip(panels, settings, strict=True):
        own = [r for r in rows if r["setting"] == setting]
        for at, row in enumerate(own):
            for i, column in enumerate(COLUMNS):
                x, found_cell = at + (i - 3.5) / 10, cell(row, column)
                if "rate" in found_cell:
                    axes.bar(x, found_cell["rate"] * row["sequences"], 0.09, color=COLORS[column])
                else:
                    axes.text(x, 0, found_cell["why"], rotation=90, fontsize=5, ha="center", va="bottom")
        axes.set_xticks(range(len(own)), [r["model"] for r in own], fontsize=7)
        axes.set_title(setting, fontsize=9)
        axes.set_ylabel("sequences/s")
    for column in COLUMNS:
        panels[0].bar(0, 0, color=COLORS[column], label=column)
    panels[0].legend(ncols=4, fontsize=7, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
