"""OSDP over FSDP where nothing changes but the link: the same machine, model and memory, with its bandwidth varied."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import osdp
from support.paper.cells import FSDP, OSDP, Cell, best, searched
from support.paper.instance import FORCED, NONE, between_servers
from support.paper.markdown import gain, table
from support.paper.models import ADDITION, description
from support.paper.settings import SETTINGS, UNITS, Setting

TIMES = (0.25, 0.5, 1.0, 2.0, 4.0)  # the bandwidth of the link; its latency stays
MODELS = ("N&D 48x1536", "W&S 4x6144", "I&C 48x1024/2048")  # one of each family
COLUMNS = {"FSDP": FSDP, "OSDP": OSDP}
REGIMES = {
    "capped": "1 to 3 units",
    "free": "free batch",
    "free choice": "free batch, recomputation as each likes",
}
FASTEST = "1 to 3 units, over the fastest of FSDP, HYBRID_SHARD and FULL_SHARD_HPZ"


def with_link(setting: Setting, times: float) -> Setting:
    """All collectives of one server; of several, what is between them."""
    hardware = osdp.Hardware.load(setting.hardware) if isinstance(setting.hardware, str) else setting.hardware
    which = ("between_hosts",) if setting.hosts > 1 else ("all_gather", "reduce_scatter", "all_reduce")
    links = {name: getattr(hardware, name) for name in which}
    varied = {
        name: dataclasses.replace(link, beta_s_per_byte=link.beta_s_per_byte / times)
        for name, link in links.items()
    }
    return dataclasses.replace(setting, hardware=dataclasses.replace(hardware, **varied))


def by_link(model: str) -> list[dict[str, Any]]:
    """JSON: a row for each number of servers and each bandwidth, at the larger of the authors' limits."""
    warnings.simplefilter("ignore")
    short = description(model, ADDITION)
    found = []
    for setting in (s for s in SETTINGS if s.gib == max(s.gib for s in SETTINGS)):
        for times in TIMES:
            varied = with_link(setting, times)
            ways: dict[str, Sequence[dict[str, Any]]] = {"FSDP": (NONE, FORCED), "OSDP": ({},)}
            cells: dict[str, dict[str, Cell]] = {
                "capped": {
                    c: best([searched(short, varied, k, **space, **NONE) for k in UNITS])
                    for c, space in COLUMNS.items()
                },
                "free": {c: searched(short, varied, "auto", **space, **NONE) for c, space in COLUMNS.items()},
                "free choice": {
                    c: best([searched(short, varied, "auto", **space, **way) for way in ways[c]])
                    for c, space in COLUMNS.items()
                },
            }
            if setting.hosts > 1:
                others = [c for of_units in between_servers(model, varied).values() for c in of_units]
                cells["capped"]["the fastest FSDP"] = best([cells["capped"]["FSDP"], *others])
            found.append({"model": model, "setting": setting.name, "times": times, "cells": cells})
    return found


def links(found: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each model, number of servers and regime; a column for each bandwidth."""
    lines = []
    for model, setting in dict.fromkeys((r["model"], r["setting"]) for r in found):
        own = {r["times"]: r["cells"] for r in found if (r["model"], r["setting"]) == (model, setting)}
        pairs = {
            said: [(own[t][name]["OSDP"], own[t][name]["FSDP"]) for t in TIMES]
            for name, said in REGIMES.items()
        }
        if all("the fastest FSDP" in cells["capped"] for cells in own.values()):
            pairs[FASTEST] = [(own[t]["capped"]["OSDP"], own[t]["capped"]["the fastest FSDP"]) for t in TIMES]
        lines += [[model, setting, said, *(gain(*pair) for pair in of)] for said, of in pairs.items()]
    return table(("model", "setting", "batch", *(f"{t:g} x" for t in TIMES)), lines)
