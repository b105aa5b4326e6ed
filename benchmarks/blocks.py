"""How well the simulator plays blocks that the paper's authors measured, on figures fitted to the other blocks.

    python benchmarks/blocks.py [--json results/blocks.json] [--machine]

tests/data/rtx_titan_8gpu_blocks.json has seconds of a transformer block's training step on 8 RTX TITAN, of five hidden
sizes, with attention and MLP each kept whole or sharded. The machine's figures (links, products, what communication
takes from computation) are fitted to all hidden sizes but one, by least squares of relative errors of the played step,
and that one is played. Batches of 1 to 3 units of 576 tokens: the authors' first batch is anomalous, and in the last,
steps of whole blocks are longer by more than any other. --machine prints the figures fitted to all sizes but the
smallest.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.machine import machine

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective, Hardware
from tests.unit.gpt_descriptions import operator

BLOCKS = json.loads((Path(__file__).parent.parent / "tests/data/rtx_titan_8gpu_blocks.json").read_text())[
    "blocks"
]
TOKENS, RANKS = 576, 8
BATCHES = (1, 2, 3)
LEVELS = ("attention and MLP whole", "attention sharded", "MLP sharded", "both sharded")
FEW, MANY = 2, 5  # blocks of the two models whose difference is that of blocks in the middle of a step


def described(hidden: int, blocks: int) -> ModelDescription:
    parts = [
        operator(
            f"{b}.{name}",
            "Part",
            {"weight": (products * hidden, hidden)},
            flops=2 * TOKENS * products * hidden**2,
        )
        for b in range(blocks)
        for name, products in (("attention", 4), ("mlp", 8))
    ]
    return ModelDescription("Blocks", tuple(parts), (), 1, 0)


MODELS = {b["hidden"]: [described(b["hidden"], n) for n in (FEW, MANY)] for b in BLOCKS}


def played_s(hardware: Hardware, hidden: int, level: int, batch: int) -> float:
    """Seconds of one block."""
    modes = {"attention": level in (1, 3), "mlp": level in (2, 3)}
    steps = []
    for description in MODELS[hidden]:
        choices = {
            o.name: osdp.Choice("FULL_SHARD" if modes[o.name.split(".")[1]] else "NO_SHARD")
            for o in description.operators
        }
        plan = osdp.Plan.uniform(description, "NO_SHARD").replace(choices)
        steps.append(replace(plan, batch_size=batch).simulate(hardware, RANKS).step_time_s)
    return (steps[1] - steps[0]) / (MANY - FEW)


def hardware_of(logs: Sequence[float]) -> Hardware:
    flops, gather_alpha, gather_beta, reduce_alpha, reduce_beta, stolen = (float(x) for x in np.exp(logs))
    return replace(
        Hardware.load("rtx-titan-8"),
        flops_per_s=flops,
        all_gather=Collective(gather_alpha, gather_beta),
        reduce_scatter=Collective(gather_alpha, gather_beta),
        all_reduce=Collective(reduce_alpha, reduce_beta),
        stolen_computation=min(stolen, 100.0),
    )


def errors(hardware: Hardware, sizes: Sequence[int]) -> list[float]:
    return [
        played_s(hardware, b["hidden"], level, batch) / b["time_s"][batch][level] - 1
        for b in BLOCKS
        if b["hidden"] in sizes
        for level in range(len(LEVELS))
        for batch in BATCHES
    ]


def fitted(sizes: Sequence[int]) -> Hardware:
    start = np.log([1.4e13, 1e-4, 2e-10, 4e-5, 2e-10, 0.3])
    found = least_squares(lambda logs: errors(hardware_of(logs), sizes), start, diff_step=0.02, max_nfev=25)
    return hardware_of(found.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--machine", action="store_true")
    given = parser.parse_args()
    sizes = [b["hidden"] for b in BLOCKS]
    shipped = Hardware.load("rtx-titan-8")
    rows: list[dict[str, Any]] = []
    for left_out in sizes:
        apart = errors(fitted([s for s in sizes if s != left_out]), [left_out])
        before = errors(shipped, [left_out])
        rows.append({"hidden": left_out, "errors": apart, "shipped": before})
    table = Table(title="a block's step, played over measured, less 1", title_justify="left")
    for column in ("hidden", "left out: mean", "worst", "shipped rtx-titan-8: mean", "worst"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = [f(map(abs, row[which])) for which in ("errors", "shipped") for f in (fmean, max)]
        table.add_row(str(row["hidden"]), *(f"{x:.1%}" for x in figures))
    Console(width=120).print(table)
    if given.machine:
        print(fitted(sizes[1:]).dumps())
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
