"""The peak of the live heap in forward and backward, over shards and optimizer state.

    python benchmarks/memory.py [--json FILE] [--ranks 2 4]

Six units of Linear(1024, 1024), batch 1, AdamW; every contestant in processes of its own. All large heap blocks are
counted, whoever made them (heap_peak.c): gathered parameters, gradients (the shards of gradients too), buckets,
arenas, the backend's temporaries. In units of B, the bytes of one unit; what a rank keeps between steps besides
parameters and optimizer state (an arena, say) counts in full. What the first use of a contestant imports does not: it
is a few MiB of Python, for any model, so a tiny model has been trained before.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.table import Table
from support.launch import as_rank, largest, run_ranks
from support.machine import machine, show

UNITS, WIDTH, TINY = 6, 1024, 64
CONTESTANTS = (
    "DDP",
    "FSDP1",
    "FSDP2",
    "OSDP NO_SHARD",
    "OSDP SHARD_GRAD_OP",
    "OSDP FULL_SHARD",
    "OSDP FULL_SHARD in 4 slices",
)
GOALS = {  # by world size
    "OSDP NO_SHARD": {2: 7.0, 4: 7.0},
    "OSDP FULL_SHARD": {2: 5.6, 4: 4.35},
    "OSDP FULL_SHARD in 4 slices": {2: 3.8, 4: 2.35},
}


def measure(name: str) -> dict[str, float]:
    import torch

    torch.manual_seed(0)
    peak_of_steps(name, TINY, steps=3)
    return peak_of_steps(name, WIDTH, steps=6)


def peak_of_steps(name: str, width: int, steps: int) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from support.heap import Heap
    from support.peers import PEERS, local_bytes, single_modes
    from torch import nn

    import osdp

    x = torch.randn(1, width)
    with torch.device("meta"):
        twin = nn.Sequential(*(nn.Linear(width, width) for _ in range(UNITS)))
    wrap = {**PEERS, **single_modes(osdp.describe(twin, x.to("meta")))}[name]
    heap = Heap()
    before = heap.live()
    layers = [nn.Linear(width, width) for _ in range(UNITS)]
    unit_bytes = sum(p.numel() * p.element_size() for p in layers[0].parameters())
    model = wrap(nn.Sequential(*layers), layers)
    del layers
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    peaks = []
    for step in range(steps):
        dist.barrier()
        heap.live()
        heap.restart()
        model(x).sum().backward()
        if step >= 2:  # the optimizer has its state, and buffers are as they will be
            peaks.append(heap.peak() - before - 3 * local_bytes(model))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    peak, kept = largest(max(peaks), heap.live() - before - 3 * local_bytes(model))
    return {"peak_units": peak / unit_bytes, "kept_units": kept / unit_bytes, "unit_bytes": unit_bytes}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    here = machine()
    rows = []
    for ranks in arguments.ranks:
        for name in CONTESTANTS:
            row = {"name": name, "ranks": ranks, **run_ranks(__file__, [name], ranks, seconds=120)}
            row["goal_units"] = GOALS.get(name, {}).get(ranks)
            rows.append(row)
            print(f"{name}, {ranks} ranks: {row['peak_units']:.2f} B")
    table = Table(title="peak of the live heap in forward + backward, in units of B", title_justify="left")
    for column in ("", "ranks", "peak", "kept between steps", "goal", ""):
        table.add_column(column, justify="left" if column == "" else "right")
    for r in rows:
        goal = r["goal_units"]
        verdict = "" if goal is None else "yes" if r["peak_units"] <= goal else "NO"
        table.add_row(
            r["name"],
            str(r["ranks"]),
            f"{r['peak_units']:.2f}",
            f"{r['kept_units']:.2f}",
            "" if goal is None else f"{goal}",
            verdict,
        )
    show(table, here, {"contestants": rows}, arguments.json, width=100)
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
