"""What a data parallel costs the processor per tiny unit: forward and backward, over the bare model.

    python benchmarks/overhead.py [--json FILE] [--rounds N]

Units of Linear(16, 16) and LayerNorm(16), whose arithmetic and bytes are nothing: what is left is the cost of being a
unit. All contestants take turns in every round, in the same processes, with nothing between them and the bare model;
a figure is the median over rounds of (contestant - bare model of that round) per unit. `cpu` is the time of all of the
process's threads (a rank that waits for another sleeps, and costs nothing); `elapsed` is what the caller waits, with
more than one rank the exchange of a few bytes included, and on fewer idle cores than threads their scheduling too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from support.launch import as_rank, run_ranks
from support.machine import machine, machine_line

UNITS, WIDTH, BATCH = 24, 16, 4
STEPS = 3  # of one contestant in one round
BARE = "the bare model"


def measure(rounds: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.peers import PEERS, bare, single_modes
    from torch import nn

    import osdp

    def make() -> tuple[nn.Module, list[nn.Module]]:
        torch.manual_seed(0)
        units = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(UNITS)]
        return nn.Sequential(*units), units

    x = torch.randn(BATCH, WIDTH)
    modes = single_modes(osdp.describe(make()[0], x))
    modes.pop("OSDP FULL_SHARD in 4 slices")
    contestants = {name: wrap(*make()) for name, wrap in {BARE: bare, **PEERS, **modes}.items()}
    names = list(contestants)
    cpu: dict[str, list[float]] = {name: [] for name in names}
    elapsed: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(3 + int(rounds)):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            model = contestants[name]
            dist.barrier()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                model(x).sum().backward()
                model.zero_grad(set_to_none=True)
            if turn >= 3:
                elapsed[name].append((time.perf_counter() - begin) / STEPS)
                cpu[name].append((time.process_time() - begin_cpu) / STEPS)
    return {name: {"cpu": over_bare(cpu, name), "elapsed": over_bare(elapsed, name)} for name in names}


def over_bare(times: dict[str, list[float]], name: str) -> dict[str, float]:
    """Microseconds per unit; of the bare model itself, all of its own."""
    zero = [0.0] * len(times[BARE]) if name == BARE else times[BARE]
    over = [1e6 * (t - z) / UNITS for t, z in zip(times[name], zero, strict=True)]
    low, _, high = quantiles(over, n=4)
    return {"median_us": median(over), "quartile_us": low, "upper_quartile_us": high}


def judge(cpu: dict[str, float]) -> dict[str, bool]:
    return {
        "NO_SHARD below DDP": cpu["OSDP NO_SHARD"] < cpu["DDP"],
        "FULL_SHARD at most a quarter of FSDP2": cpu["OSDP FULL_SHARD"] <= cpu["FSDP2"] / 4,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    console = Console(width=110)
    here = machine()
    found = {ranks: run_ranks(__file__, [str(arguments.rounds)], ranks) for ranks in (1, 2)}
    table = Table(
        title="microseconds per tiny unit, forward + backward, over the bare model", title_justify="left"
    )
    table.add_column("")
    for ranks in found:
        table.add_column(f"cpu, {ranks} rank{'s' * (ranks > 1)}", justify="right")
        table.add_column("quartiles", justify="right")
        table.add_column("elapsed", justify="right")
    for name in found[1]:
        cells = []
        for rows in found.values():
            cpu, elapsed = rows[name]["cpu"], rows[name]["elapsed"]
            cells += [
                f"{cpu['median_us']:.0f}",
                f"{cpu['quartile_us']:.0f} - {cpu['upper_quartile_us']:.0f}",
                f"{elapsed['median_us']:.0f}",
            ]
        table.add_row(name, *cells)
    console.print(table)
    goals = {
        ranks: judge({name: row["cpu"]["median_us"] for name, row in rows.items()})
        for ranks, rows in found.items()
    }
    for ranks, verdicts in goals.items():
        for goal, reached in verdicts.items():
            console.print(f"{ranks} rank(s): {goal}: {'yes' if reached else 'NO'}")
    console.print(machine_line(here))
    if arguments.json:
        result = {"machine": here, "rounds": arguments.rounds, "ranks": found, "goals": goals}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
