"""Tables of many ranks, and of published steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from support.paper.markdown import table


def scale(found: Sequence[dict[str, Any]]) -> list[str]:
    columns = ("DP", "FSDP", "TP", "PP", "3D", "OSDP", "3D+OSDP")
    lines = [
        [
            r["model"],
            f"{r['ranks']:,}",
            f"{r['tokens'] / 2**20:.0f} Mi",
            *("OOM or N/A" if (v := r["tokens_per_s_per_rank"][c]) is None else f"{v:,.0f}" for c in columns),
            " x ".join(map(str, r["degrees"])),
            f"{r['search_cpu_s']:.1f}",
        ]
        for r in found
    ]
    return table(("model", "ranks", "tokens a step", *columns, "degrees found", "search, CPU s"), lines)


def published(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        [
            r["model"],
            f"{r['gpus']} {r['gpu']}",
            " x ".join(map(str, r["degrees"])),
            f"{r['published_s']:.2f} s",
            f"{r['predicted_s']:.2f} s",
            f"{r['predicted_s'] / r['published_s']:.2f}",
            r["source"],
        ]
        for r in found
    ]
    return table(("model", "GPUs", "degrees", "published step", "predicted", "ratio", "source"), lines)
