"""A bare wrap, and what its first forward changes: the heap's peak, and the time of the first step.

    python benchmarks/first_forward.py [--json FILE] [--ranks 2] [--repeats 1]

`osdp.FullyShardedDataParallel(model)` around six Linear(1024, 1024) in an nn.Sequential, and around a GPT; SGD, every way in
processes of its own; the least time of `repeats` counts, and the largest peak. "at the wrap": the plan of a wrap without
a sample, obeyed to the end. "at the first forward": what a script gets that says nothing. "memory=": with a limit that
only FULL_SHARD keeps, searched at the first forward. All large heap blocks count (heap_peak.c), less shards, on the
rank that needs most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.table import Table
from support.launch import as_rank, largest, run_ranks
from support.machine import machine, show

MODELS = ("six layers", "GPT")
WAYS = ("FSDP1", "at the wrap", "at the first forward", "memory=")


def measure(model_name: str, way: str) -> dict[str, float]:
    import time

    import torch
    import torch.distributed as dist
    from support.gpt import GPT, batch
    from support.heap import Heap
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    import osdp

    torch.manual_seed(0)
    if model_name == "GPT":
        inner, inputs = GPT(), batch(torch.Generator().manual_seed(0))
    else:
        inner, inputs = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))), (torch.randn(1, 1024),)
    full = sum(p.numel() * p.element_size() for p in inner.parameters())
    dist.all_reduce(torch.zeros(1))
    heap = Heap()
    before = heap.live() - full  # of the model, which the wrap lets go
    model: nn.Module
    if way == "FSDP1":
        model = FullyShardedDataParallel(inner, device_id=torch.device("cpu"), use_orig_params=True)
    elif way == "at the wrap":
        model = osdp.FullyShardedDataParallel(inner, plan=osdp.Plan.uniform(osdp.describe(inner)))
    elif way == "memory=":
        model = osdp.FullyShardedDataParallel(
            inner, memory=4 * full, search={"modes": "FULL_SHARD", "checkpoint": "none"}
        )
    else:
        model = osdp.FullyShardedDataParallel(inner)
    local = sum(p.numel() * p.element_size() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    peaks, seconds = [], []
    for _ in range(8):
        dist.barrier()
        heap.live()
        heap.restart()
        started = time.perf_counter()
        output = model(*inputs)
        output.square().mean().backward()
        seconds.append(time.perf_counter() - started)
        peaks.append(heap.peak() - before - local)
        del output
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    first_peak, peak, first, later = largest(peaks[0], max(peaks[2:]), seconds[0], sorted(seconds[2:])[3])
    return {"model_bytes": full, "first_peak": first_peak, "peak": peak, "first_s": first, "step_s": later}


def best(model: str, way: str, ranks: int, repeats: int) -> dict[str, float]:
    found = [run_ranks(__file__, [model, way], ranks, seconds=120) for _ in range(repeats)]
    return {k: (min if k.endswith("_s") else max)(f[k] for f in found) for k in found[0]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    here = machine()
    rows = [
        {"model": model, "way": way, **best(model, way, arguments.ranks, arguments.repeats)}
        for model in MODELS
        for way in WAYS
    ]
    table = Table(
        title="a bare wrap: peak beside shards, and time of forward + backward", title_justify="left"
    )
    for column in ("", "", "peak, first step", "peak, later", "first step", "later"):
        table.add_column(column, justify="left" if column == "" else "right")
    for r in rows:
        sizes = [f"{r[k] / 2**20:.1f} MiB" for k in ("first_peak", "peak")]
        table.add_row(r["model"], r["way"], *sizes, *(f"{r[k] * 1e3:.0f} ms" for k in ("first_s", "step_s")))
    show(table, here, {"ways": rows}, arguments.json, width=110)
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
