"""One matrix product, one table, and one convolution, in slices: peak and time by their number, beside the paper's curves.

    python benchmarks/splitting.py [--kinds KIND ...] [--widths W ...] [--json FILE] [--rounds N] [--apart] [--ranks 2 4]
        [--most-mib 300]

The product is of width h with 4 h outputs (as in a transformer's MLP, and in the paper's figure, whose unsplit peaks are
4.3 weights), the table has 50,257 words of width h, the convolution has 4 h outputs, kernels of 3 x 3 and an image of
4 x 4; FULL_SHARD, AdamW, 64 rows or words per rank, fp32. g = 6 leaves a rest. A small linear layer follows, so that what
is measured is gathered again for backward, as in a model (what ends forward is not). Measured on CPUs over gloo: the peak of
the live heap in steps over what was live before the model was made (heap_peak.c), with parameters and optimizer state.
Weights of more than --most-mib are predicted alone. Predicted: the simulated step of the same plan, on as many ranks of
CPUs, and on 8 RTX TITAN, the paper's machine. --rounds: also times, medians over rounds in which every g takes one step, the
slowest rank's; 0: peaks alone. --apart: a g takes all its rounds before the next one is made, so that one model is in memory
at a time, which weights of a GiB need. --json: what the file holds of other kinds, widths and ranks stays.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from support.launch import as_rank, run_ranks, slowest
from support.machine import machine

WIDTHS, NUMBERS = (768, 1024, 4096, 8192, 12288), (1, 2, 4, 6, 8, 16)
KINDS = ("product", "table", "convolution")
WORDS, ROWS = 50257, 64
PAPER = {  # its figure "operator splitting", 8 RTX TITAN: by width, MB and seconds for g = 0 (our 1), 4, 6, 8, 16
    768: ((72.89, 72.79, 73.57, 72.83, 73.72), (0.0279, 0.0357, 0.0363, 0.0389, 0.0594)),
    1024: ((105.01, 85.9, 84.43, 82.03, 80.11), (0.0327, 0.0373, 0.0393, 0.0462, 0.0566)),
    8192: ((4616.4, 3080.85, 2571.03, 2313.39, 2311.09), (1.855, 1.847, 1.851, 1.870, 1.849)),
    12288: ((10380.59, 6925.39, 5773.95, 5197.97, 5193.06), (5.391, 5.160, 5.202, 4.815, 4.881)),
}
OF_PAPER = (1, 4, 6, 8, 16)


def weight_bytes(kind: str, width: int) -> int:
    return 4 * width * (WORDS if kind == "table" else 4 * width * (9 if kind == "convolution" else 1))


def made(kind: str, width: int, device: str = "cpu") -> tuple[Any, Any]:
    """The model, which returns its loss, and what one rank feeds it."""
    import torch
    from torch import nn

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if kind == "convolution":
                self.one: nn.Module = nn.Conv2d(width, 4 * width, 3, padding=1, bias=False)
            elif kind == "product":
                self.one = nn.Linear(width, 4 * width, bias=False)
            else:
                self.one = nn.Embedding(WORDS, width)
            self.last = nn.Linear(width if kind == "table" else 4 * width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x)
            if kind == "convolution":
                y = y.mean((2, 3))
            loss: torch.Tensor = self.last(y).square().mean()
            return loss

    with torch.device(device):
        x = torch.randn(ROWS, width) if kind == "product" else torch.arange(0, WORDS, WORDS // ROWS)[:ROWS]
        return One(), torch.randn(1, width, 4, 4) if kind == "convolution" else x


def plans(kind: str, width: int) -> dict[int, Any]:
    import osdp

    description = osdp.describe(*made(kind, width, "meta"))
    whole = osdp.Plan.uniform(description, "FULL_SHARD")
    apart = dataclasses.replace(whole, units=tuple((name,) for name in whole.choices))
    slices = {g: osdp.Choice("FULL_SHARD", granularity=g, split="out") for g in NUMBERS[1:]}
    return {1: apart, **{g: apart.replace({"one": choice}) for g, choice in slices.items()}}


def measure(kind: str, width: str, rounds: str, apart: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.heap import Heap

    import osdp

    heap = Heap()
    first, x = made(kind, int(width))  # the buffers and imports of a process's first step are not a plan's
    first(x).backward()
    torch.optim.AdamW(first.parameters(), fused=True).step()
    del first
    peaks: dict[int, float] = {}
    times: dict[int, list[float]] = {}
    steps = {}

    def timed(g: int) -> None:
        dist.barrier()
        begin = time.perf_counter()
        steps[g]()
        times.setdefault(g, []).append(slowest(time.perf_counter() - begin))

    for g, plan in plans(kind, int(width)).items():
        before = heap.live()
        model, x = made(kind, int(width))
        model = osdp.fully_shard(model, plan)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(model: Any = model, x: Any = x, optimizer: Any = optimizer) -> None:
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        seen = []
        for _ in range(3):
            dist.barrier()
            heap.restart()
            step()
            seen.append(heap.peak() - before)
        peaks[g] = slowest(max(seen))
        steps[g] = step
        del model, x, optimizer, step
        if apart == "True":
            for _ in range(int(rounds)):
                timed(g)
        if apart == "True" or rounds == "0":
            steps.clear()
    names = list(steps)
    for turn in range(int(rounds) if names else 0):
        for g in names[turn % len(names) :] + names[: turn % len(names)]:
            timed(g)
    return {"peak_bytes": peaks, "median_s": {g: median(t) for g, t in times.items()}}


def predicted(kind: str, width: int, ranks: int) -> dict[str, dict[int, float]]:
    import osdp

    hardware = osdp.Hardware.load("rtx-titan-8")
    if ranks < 8:  # as measured: on CPUs a gradient may be copied while the next one is made
        hardware = dataclasses.replace(hardware, device="cpu", world_size=ranks)
    found = {g: p.simulate(hardware, world_size=ranks) for g, p in plans(kind, width).items()}
    return {
        "peak_bytes": {g: t.largest_peak_bytes for g, t in found.items()},
        "median_s": {g: t.step_time_s for g, t in found.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--most-mib", type=int, default=300)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--widths", type=int, choices=WIDTHS, nargs="+", default=WIDTHS)
    arguments = parser.parse_args()
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    if arguments.json and arguments.json.exists():
        rows = {(row["kind"], row["width"]): row for row in json.loads(arguments.json.read_text())["rows"]}
    for kind in arguments.kinds:
        for width in arguments.widths:
            row = rows.get((kind, width), {"measured": {}, "predicted": {}})
            row |= {"kind": kind, "width": width, "weight_bytes": weight_bytes(kind, width)}
            row["predicted"] |= {str(n): predicted(kind, width, n) for n in (*arguments.ranks, 8)}
            for n in arguments.ranks if row["weight_bytes"] <= arguments.most_mib << 20 else ():
                here, given = machine(), [kind, str(width), str(arguments.rounds), str(arguments.apart)]
                measured = run_ranks(__file__, given, n, seconds=1800)
                settings = {"rounds": arguments.rounds, "apart": arguments.apart, "machine": here}
                row["measured"][str(n)] = measured | settings
            rows[kind, width] = row = json.loads(json.dumps(row))
            print("\n".join([*peaks_by_slices(row), *times_by_slices(row)]), flush=True)
            if arguments.json:
                order = sorted(rows, key=lambda at: (KINDS.index(at[0]), at[1]))
                arguments.json.write_text(json.dumps({"rows": [rows[at] for at in order]}, indent=1) + "\n")
    return 0


def peaks_by_slices(row: dict[str, Any]) -> list[str]:
    """One line for each number of ranks: peaks in MB and, in brackets, the part of the unsplit one."""
    return _lines(row, "peak_bytes", 1e-6, "{:,.1f} ({:.2f})", all_ranks=True)


def without_state(row: dict[str, Any]) -> list[str]:
    """The same peaks less parameters and optimizer state, in weights."""
    less = {**row, "measured": {}, "predicted": {}}
    for what in ("measured", "predicted"):
        for ranks, found in row[what].items():
            state = 3 * row["weight_bytes"] / int(ranks)
            peaks = {g: v - state for g, v in found["peak_bytes"].items()}
            less[what][ranks] = {"peak_bytes": peaks}
    return _lines(less, "peak_bytes", 1 / row["weight_bytes"], "{:.2f}", papers=False)


def times_by_slices(row: dict[str, Any]) -> list[str]:
    """Seconds, where they were measured, and predicted for the paper's machine."""
    return _lines(row, "median_s", 1, "{:.4f} ({:.2f})", all_ranks=False)


def _lines(
    row: dict[str, Any], what: str, scale: float, form: str, *, all_ranks: bool = True, papers: bool = True
) -> list[str]:
    sources = []
    for ranks, of_ranks in sorted(row["predicted"].items(), key=lambda item: int(item[0])):
        sources.append((f"{ranks} ranks, measured", row["measured"].get(ranks, {}).get(what)))
        if all_ranks or ranks == "8":
            sources.append((f"{ranks} ranks, predicted", of_ranks[what]))
    if papers and row["kind"] == "product" and row["width"] in PAPER:
        theirs = PAPER[row["width"]][0 if what == "peak_bytes" else 1]
        sources.append(("8 ranks, the paper", {g: v / scale for g, v in zip(OF_PAPER, theirs, strict=True)}))
    found = []
    for source, values in sources:
        if values:
            by_number = {int(g): v * scale for g, v in values.items()}
            cells = [
                form.format(by_number[g], by_number[g] / by_number[1]) if g in by_number else ""
                for g in NUMBERS
            ]
            found.append(f"{row['kind']} {row['width']:,} | {source} | " + " | ".join(cells))
    return found


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
