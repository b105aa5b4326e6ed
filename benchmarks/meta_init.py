"""How much memory a rank needs to initialise a model that it could not hold: built on the meta device, then sharded.

    python benchmarks/meta_init.py [--json FILE] [--ranks 2] [--gib 2.0]

Linear(2048, 2048) layers, FULL_SHARD over the ranks. Two ways: shapes on the meta device, which `osdp.fully_shard`
initialises module by module; and every rank building the whole model before it shards it. Counted are all large heap blocks
(heap_peak.c), from before the model is built until it is sharded, on the rank that needs most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.table import Table
from support.launch import as_rank, largest, run_ranks
from support.machine import machine, show

WIDTH = 2048
WAYS = ("from the meta device", "built on every rank")
GOAL = 0.6  # peak over the model's bytes, on two ranks: 1.2 GiB of 2 GiB


def measure(way: str, layers: str) -> dict[str, float]:
    import time
    from contextlib import nullcontext

    import torch
    import torch.distributed as dist
    from support.heap import Heap
    from torch import nn

    import osdp

    dist.all_reduce(torch.zeros(1))
    heap = Heap()
    before = heap.live()
    heap.restart()
    started = time.monotonic()
    torch.manual_seed(0)
    with torch.device("meta") if way == WAYS[0] else nullcontext():
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(int(layers))))
    full_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, torch.zeros(1, WIDTH, device="meta"))))
    seconds = time.monotonic() - started
    peak = heap.peak() - before
    peak, kept, seconds = largest(peak, heap.live() - before, seconds)
    return {"model_bytes": full_bytes, "peak_bytes": peak, "kept_bytes": kept, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the model")
    arguments = parser.parse_args()
    layers = round(arguments.gib * 2**30 / (4 * WIDTH * (WIDTH + 1)))
    here = machine()
    rows = [
        {
            "way": way,
            "ranks": arguments.ranks,
            **run_ranks(__file__, [way, str(layers)], arguments.ranks, seconds=500),
        }
        for way in WAYS
    ]
    table = Table(title="memory of a rank while a model is initialised and sharded", title_justify="left")
    for column in ("", "ranks", "model", "peak", "kept", "of the model", "goal", "s"):
        table.add_column(column, justify="left" if column == "" else "right")
    for r in rows:
        share = r["peak_bytes"] / r["model_bytes"]
        r["goal_share"] = GOAL if r["way"] == WAYS[0] and arguments.ranks == 2 else None
        verdict = "" if r["goal_share"] is None else "yes" if share <= GOAL else "NO"
        sizes = [f"{r[k] / 2**30:.2f} GiB" for k in ("model_bytes", "peak_bytes", "kept_bytes")]
        table.add_row(r["way"], str(r["ranks"]), *sizes, f"{share:.2f}", verdict, f"{r['seconds']:.1f}")
    show(table, here, {"ways": rows}, arguments.json, width=100)
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
