"""Tables of searches: Algorithm 1, times, and where a larger space gave less."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from support.paper.cells import MARGIN, Cell
from support.paper.headlines import Row, seconds
from support.paper.markdown import table


def algorithm(rows: Sequence[Row]) -> list[str]:
    lines = []
    for r in rows:
        found = r["algorithm 1"]
        if found:
            lines.append(
                [
                    r["model"],
                    r["setting"],
                    *(_searched(c) for c in found.values()),
                    f"{max(c['search_s'] for c in r['capped']['none']['OSDP']):.2f} s",
                ]
            )
    head = (
        "model",
        "setting",
        "as printed",
        "smallest options first",
        "ours, the same costs",
        "ours, played steps",
    )
    return table(head, lines)


def _searched(c: Cell) -> str:
    if "rate" not in c:
        return f"{c['why']}, {c['search_s']:.2f} s"
    return f"batch {c['batch']}, {c['rate']:.3g}/s, {c['search_s']:.2f} s" + (
        "" if c["done"] else ", stopped"
    )


def search_times(rows: Sequence[Row]) -> str:
    took = sorted(seconds(rows))
    return f"mean {fmean(took):.2f} s, median {took[len(took) // 2]:.2f} s, at most {took[-1]:.2f} s"


def smaller_is_faster(rows: Sequence[Row]) -> list[str]:
    """Where a larger space gave a slower plan: a search's fault, not a result."""
    lines = []
    for r in rows:
        none, chosen = r["capped"]["none"], r["capped"]["free choice"]
        pairs: list[tuple[str, Cell, str, Cell]] = []
        for k in range(len(none["OSDP"])):
            units = f"{k + 1} units"
            parts = [("DP", none["DP"][k]), ("FSDP", none["FSDP"][k])]
            pairs += [("OSDP-base", none["OSDP-base"][k], f"{n}, {units}", c) for n, c in parts]
            pairs.append(("OSDP", none["OSDP"][k], f"OSDP-base, {units}", none["OSDP-base"][k]))
            wider = ("OSDP, recomputation as it likes", chosen["OSDP"][k])
            pairs.append((*wider, f"without, {units}", none["OSDP"][k]))
            pairs.append((*wider, f"with, {units}", r["capped"]["forced"]["OSDP"][k]))
            degrees = {name: cells[k] for name, cells in r["capped"]["degrees"].items()}
            pairs += [
                ("3D+OSDP", degrees["3D+OSDP"], f"{n}, {units}", degrees[n]) for n in ("3D", "FSDP", "OSDP")
            ]
            pairs.append(("3D+OSDP", degrees["3D+OSDP"], f"OSDP in one pass, {units}", none["OSDP"][k]))
        free, chosen_free, words, large = r["free"]["none"], r["free"]["free choice"], r["words"], r["large"]
        pairs += [("OSDP", free["OSDP"], f"{n}, free batch", free[n]) for n in ("OSDP-base", "FSDP")]
        wider = ("OSDP, recomputation as it likes", chosen_free["OSDP"])
        pairs += [
            (*wider, "without, free batch", free["OSDP"]),
            (*wider, "FSDP, free batch", chosen_free["FSDP"]),
        ]
        pairs += [("OSDP", words["OSDP"], f"{n}, 50,257 words", words[n]) for n in ("OSDP-base", "FSDP")]
        pairs += [("3D+OSDP", large["3D+OSDP"], f"{n}, large step", large[n]) for n in ("3D", "FSDP", "OSDP")]
        for larger, ours, smaller, theirs in pairs:
            if "rate" in theirs and not ours.get("rate", 0) >= theirs["rate"] * (1 - MARGIN):
                by = f"{1 - ours['rate'] / theirs['rate']:.2%}" if "rate" in ours else "does not fit"
                lines.append([r["model"], r["setting"], larger, smaller, by])
    return (
        table(("model", "setting", "larger space", "smaller space", "slower by"), lines)
        if lines
        else ["None.", ""]
    )
