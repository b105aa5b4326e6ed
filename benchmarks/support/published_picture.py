"""A picture of predictions beside published runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

COLORS = {"a100_40gb": "#7aa6c2", "a100_80gb": "#1f5f8b", "h100_80gb": "#c2571a"}
NAMES = {"a100_40gb": "A100 40 GB", "a100_80gb": "A100 80 GB", "h100_80gb": "H100 80 GB"}
MARKS = {"one host": "o", "2 to 8 hosts": "s", "more hosts": "^"}
GOAL = 0.12


def draw(rows: Sequence[Mapping[str, Any]], aside: Collection[str], path: Path) -> None:
    """Predicted over published tokens/s of each run, by model; hollow: contradicted by its neighbours."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "osdp"  # equal figures make an equal file
    from matplotlib import pyplot

    models = sorted(
        {row["model"] for row in rows}, key=lambda m: float(m[:-1]) * (1e-3 if m[-1] == "m" else 1)
    )
    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.axhspan(1 - GOAL, 1 + GOAL, color="#eeeeee", zorder=0)
    axes.axhline(1, color="#888888", linewidth=1)
    gpus = list(COLORS)
    for row in rows:
        gpu = row["gpu"]
        x = models.index(row["model"]) + 0.25 * (gpus.index(gpu) - 1)
        hollow = row["run"] in aside
        axes.plot(
            x,
            row["ratio"],
            MARKS[row["scale"]],
            color=COLORS[gpu],
            markerfacecolor="none" if hollow else COLORS[gpu],
            markersize=4,
            alpha=0.8,
        )
    for gpu, color in COLORS.items():
        axes.plot([], [], "o", color=color, label=NAMES[gpu])
    for scale, mark in MARKS.items():
        axes.plot([], [], mark, color="#666666", label=scale)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("predicted / published tokens per second")
    axes.legend(ncols=2, fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
