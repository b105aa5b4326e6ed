"""Draws the pictures of README.md: docs/families.svg, how fast the paper's families train within the same memory, and
docs/gain.svg, what a step takes and holds under OSDP and its peers.

    python benchmarks/gain_picture.py

From what for_real.py and step.py stored: results/for-real.json, step-one-host.json and step-two-hosts.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PANELS = {
    "step-one-host": "2 ranks on one host",
    "step-two-hosts": "2 hosts, 1 Gb/s between them",
}
SPEED = "200mbit"  # at which communication to computation is the paper's
OURS, THEIRS = "#4c78a8", "#e45756"
# Where a label stands beside its point: (points to the right, points up, alignment).
PLACES = {
    "FSDP1": (7, -10, "left"),
    "OSDP FULL_SHARD": (7, 5, "left"),  # beside the axis: not across it
    "OSDP SHARD_GRAD_OP": (8, -15, "left"),
}


def draw() -> Any:
    figure, axes = plt.subplots(1, len(PANELS), figsize=(10, 3.6), layout="constrained")
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        contestants = json.loads((HERE / "results" / f"{name}.json").read_text())["contestants"]
        points = {
            k: (v["memory_bytes"] / 2**20, v["median_s"]) for k, v in contestants.items() if "slices" not in k
        }
        searched = sorted(point for k, point in points.items() if "searched" in k)
        ax.plot(*zip(*searched, strict=True), "o-", color=OURS, label="OSDP, searched under three limits")
        for contestant, (memory, seconds) in points.items():
            if "searched" in contestant:
                continue
            ours = contestant.startswith("OSDP")
            ax.plot(
                memory,
                seconds,
                "s" if ours else "D",
                color=OURS if ours else THEIRS,
                fillstyle="none" if ours else "full",
            )
            right, up, side = PLACES.get(contestant, (7, -3, "left"))
            ax.annotate(
                contestant.removeprefix("OSDP "), (memory, seconds), (right, up), textcoords="offset points",
                fontsize=8, color=OURS if ours else THEIRS, ha=side,
            )  # fmt: skip
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("peak memory of a step per rank (MiB)")
        ax.set_xlim(180, 560)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("time of a step (s)")
    axes[0].plot([], [], "s", color=OURS, fillstyle="none", label="OSDP, one mode for all")
    axes[0].plot([], [], "D", color=THEIRS, label="torch and FairScale")
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def draw_families() -> Any:
    runs = json.loads((HERE / "results" / "for-real.json").read_text())["runs"]
    members = {run["family"]: run for run in runs if run["speed"] == SPEED}
    figure, axes = plt.subplots(1, len(members), figsize=(10, 2.8), layout="constrained")
    for ax, (family, member) in zip(axes, members.items(), strict=True):
        for at, (contestant, row) in enumerate(member["rows"].items()):
            rate = row.get("rate", 0.0)
            ax.bar(at, rate, color=OURS if contestant.startswith("OSDP") else THEIRS)
            label = f"{rate:.0f}" if rate else "does not fit"
            ax.annotate(label, (at, rate), (0, 2), textcoords="offset points", fontsize=8, ha="center", va="bottom",
                        rotation=0 if rate else 90)  # fmt: skip
        ax.set_xticks(range(len(member["rows"])), member["rows"], fontsize=6)
        ax.set_title(f"{family}, {member['limit_bytes'] / 1e6:.0f} MB", fontsize=10)
        ax.margins(y=0.12)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("samples/s")
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "osdp"  # the same file each time
    for name, figure in {"families": draw_families(), "gain": draw()}.items():
        figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})
        print(DOCS / f"{name}.svg")
