"""All cells of one model in one setting."""

from __future__ import annotations

import warnings
from typing import Any

from support.paper.cells import (
    BASE,
    FSDP,
    HPZ,
    HYBRID,
    OSDP,
    PURE,
    Cell,
    algorithm_1,
    best,
    searched,
    with_degrees,
)
from support.paper.models import ADDITION, GPT2, description
from support.paper.settings import LARGE, UNITS, Setting

NONE: dict[str, Any] = {"checkpoint": False}
FORCED: dict[str, Any] = {"checkpoint": True}  # gathered again for it, or kept
GATHERED_AGAIN: dict[str, Any] = {"checkpoint": "regather"}  # FairScale's way, which the paper compares with
STOPPED_S = 10.0  # Algorithm 1


def between_servers(model: str, setting: Setting) -> dict[str, list[Cell]]:
    """FSDP's ways for several servers, which the paper does not compare with: sharded inside each and replicated between
    them; ZeRO++'s, gathered between them once a step."""
    ways = {"FSDP, hybrid": HYBRID, "FSDP, hpZ": HPZ}
    short = description(model, ADDITION)
    return {name: [searched(short, setting, k, **way, **NONE) for k in UNITS] for name, way in ways.items()}


def measured(model: str, setting: Setting) -> dict[str, Any]:
    """JSON: by regime, by recomputation, by column."""
    warnings.simplefilter("ignore")
    short, words = description(model, ADDITION), description(model, GPT2)
    # A list with one cell for each number of units.
    capped: dict[str, dict[str, list[Cell]]] = {
        "none": {
            c: [searched(short, setting, k, **space, **NONE) for k in UNITS] for c, space in PURE.items()
        },
        "forced": {
            "FSDP": [searched(short, setting, k, **FSDP, **GATHERED_AGAIN) for k in UNITS],
            "FSDP kept": [searched(short, setting, k, **FSDP, **FORCED) for k in UNITS],
            "OSDP": [searched(short, setting, k, **OSDP, **FORCED) for k in UNITS],
        },
        "free choice": {"OSDP": [searched(short, setting, k, **OSDP) for k in UNITS]},
    }
    if setting.hosts > 1:
        capped["none"] |= between_servers(model, setting)
    degrees = [with_degrees(short, setting, k * setting.ranks, **NONE) for k in UNITS]
    capped["degrees"] = {c: [row[c] for row in degrees] for c in degrees[0]}
    return {
        "model": model,
        "family": model[:3],
        "setting": setting.name,
        "hosts": setting.hosts,
        "sequences": ADDITION.sequences,
        "capped": capped,
        "free": {
            "none": {c: searched(short, setting, "auto", **space, **NONE) for c, space in PURE.items()},
            "free choice": {
                "FSDP": best([searched(short, setting, "auto", **FSDP, **way) for way in (NONE, FORCED)]),
                "OSDP": searched(short, setting, "auto", **OSDP),
            },
        },
        "large": with_degrees(short, setting, LARGE * setting.ranks, **NONE),
        "words": {
            c: searched(words, setting, "auto", **space, **NONE)
            for c, space in (("FSDP", FSDP), ("OSDP-base", BASE), ("OSDP", OSDP))
        },
        "algorithm 1": {
            method: algorithm_1(short, setting, method, STOPPED_S)
            for method in ("dfs", "dfs-smallest-first", "exact")
        }
        if setting.hosts == 1
        else {},
    }
