"""Tables of strategies: throughput, and gains over baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.paper.cells import best
from support.paper.headlines import Row, cell, gains, recomputed
from support.paper.markdown import gain, said, shown, table
from support.paper.models import TABLE

COLUMNS = ("DP", "GPipe", "TP", "FSDP", "3D", "OSDP-base", "OSDP", "3D+OSDP")


def models(shapes: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for family, (layers, operators, widths, parameters) in TABLE.items():
        lines.append([f"{family}, the paper", layers, operators, widths, parameters])
        for s in (s for s in shapes if s["model"].startswith(family)):
            numbers = (f"{s['layers']}", f"{s['operators']}", ", ".join(map(str, s["widths"])))
            lines.append([s["model"], *numbers, f"{s['parameters'] / 1e9:.2f} B"])
    return table(("model", "layers", "operators", "widths", "parameters"), lines)


def capped(rows: Sequence[Row]) -> list[str]:
    return _strategies(rows, [{c: cell(r, c) for c in COLUMNS} for r in rows])


def large(rows: Sequence[Row]) -> list[str]:
    columns = [c for c in COLUMNS if c != "OSDP-base"]
    return _strategies(rows, [{c: r["large"][c] for c in columns} for r in rows])


def _strategies(rows: Sequence[Row], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        [
            r["model"],
            r["setting"],
            *(shown(c, r) for c in of.values()),
            gain(of["OSDP"], of["FSDP"]),
            gain(of["3D+OSDP"], of["3D"]),
            of["3D+OSDP"].get("degrees", "-"),
        ]
        for r, of in zip(rows, cells, strict=True)
    ]
    ends = ("OSDP over FSDP", "3D+OSDP over 3D", "its tensor x pipeline x data")
    return table(("model", "setting", *cells[0], *ends), lines)


def regimes(rows: Sequence[Row]) -> list[str]:
    """OSDP over FSDP by batch, family and servers."""
    lines = []
    for hosts, servers in ((1, "8 ranks"), (2, "16 ranks")):
        for family in ("N&D", "W&S", "I&C"):
            own = [r for r in rows if r["family"] == family and r["hosts"] == hosts]
            none = [r["capped"]["none"] for r in own]
            lines.append(
                [
                    f"{family}, {servers}",
                    said(gains((n["OSDP"][0], n["FSDP"][0]) for n in none)),
                    said(gains((best(n["OSDP"]), best(n["FSDP"])) for n in none)),
                    said(gains((r["free"]["none"]["OSDP"], r["free"]["none"]["FSDP"]) for r in own)),
                    said(
                        gains(
                            (r["free"]["free choice"]["OSDP"], r["free"]["free choice"]["FSDP"]) for r in own
                        )
                    ),
                    said(gains((r["large"]["OSDP"], r["large"]["FSDP"]) for r in own)),
                    said(gains((r["words"]["OSDP"], r["words"]["FSDP"]) for r in own)),
                ]
            )
    head = (
        "",
        "one unit",
        "1 to 3 units (the authors')",
        "free batch",
        "free batch, recomputation as each likes",
        "16 units in micro-batches",
        "512 tokens, 50,257 words, free batch",
    )
    return table(head, lines)


def recomputation(rows: Sequence[Row]) -> list[str]:
    kinds = {
        "forced on both; FSDP gathers again (the paper's)": ("forced", ("FSDP",)),
        "forced on both; FSDP as is faster, gathered again or kept": ("forced", ("FSDP kept",)),
        "OSDP as it likes; FSDP at the better of all blocks and none": ("free choice", ("none", "FSDP kept")),
    }
    own = {
        f"{family}, {ranks} ranks": [r for r in rows if r["family"] == family and r["hosts"] == hosts]
        for hosts, ranks in ((1, 8), (2, 16))
        for family in ("N&D", "W&S", "I&C")
    }
    lines = [[k, *(said(recomputed(r, *how)) for r in own.values())] for k, how in kinds.items()]
    return table(("OSDP over FSDP, 1 to 3 units", *own), lines)


def splitting(rows: Sequence[Row]) -> list[str]:
    lines = []
    for r in rows:
        capped, free = r["capped"]["none"], r["free"]["none"]
        ours = best(capped["OSDP"])
        lines.append(
            [
                r["model"],
                r["setting"],
                gain(ours, best(capped["OSDP-base"])),
                gain(free["OSDP"], free["OSDP-base"]),
                gain(r["words"]["OSDP"], r["words"]["OSDP-base"]),
                f"{ours['sliced']:.0%}" if "rate" in ours else "-",
            ]
        )
    head = (
        "model",
        "setting",
        "1 to 3 units",
        "free batch",
        "512 tokens, 50,257 words",
        "operators in slices",
    )
    return table(head, lines)
