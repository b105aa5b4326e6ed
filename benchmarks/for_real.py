"""The paper's families, trained for real within the same measured memory: DDP, FSDP1, FSDP2, OSDP-base and OSDP.

    python benchmarks/for_real.py [--json FILE] [--speeds 200mbit ...] [--rounds 7] [--only "N&D" ...]

Members of N&D, W&S and I&C so small that a CPU computes them, each rank on a host of its own behind a link of each of
--speeds (network namespaces; needs root and iproute2): a core computes about 20 GFLOP/s, an RTX TITAN 500 times as much,
and 200 Mb/s is a 400th of its PCIe link, so that communication to computation is the paper's. Tokens as in the authors'
script: sequences of 6 of a vocabulary of 10, in units of --unit sequences per rank; fp32, AdamW.

The limit is halfway between the least and the most that one of DDP, FSDP1, FSDP2 (and FairScale's, where it is installed)
takes for one unit, measured: the peak of the live heap in steps over what was live before the contestant was made
(heap_peak.c), on the rank that takes most. Each contestant trains its largest batch of whole units, up to 16, that was
measured to fit; OSDP's plans are searched for this limit and the measured machine (osdp.profile), at 1, 2, 3, 4, 6, 8, 12
and 16 units, and the fastest per sample by prediction is trained if its measured peak fits, else the next. Steps are
taken in turns; a step's time is the slowest rank's, medians over rounds. About half an hour at 200 Mb/s on a quiet machine
of two cores. --json keeps each family at each speed, with the machine; what it holds under the same settings is not
measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from support.launch import as_rank, run_ranks, slowest
from support.machine import machine, machine_line

MEMBERS = {"N&D": [192] * 16, "W&S": [768] * 2, "I&C": [192] * 6 + [448] * 3}
VOCABULARY, TOKENS = 10, 6
BASE, OSDP, AGAINST = "OSDP-base", "OSDP", "FSDP2"
MOST_UNITS, TRIED_UNITS = 16, (1, 2, 3, 4, 6, 8, 12, 16)


def measure(name: str, unit: str, rounds: str, profile_seconds: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.heap import Heap
    from support.peers import PEERS, under

    import osdp

    heap, ranks = Heap(), dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())

    def batch(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, VOCABULARY, (samples, TOKENS + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def contestant(wrap: Any) -> tuple[Any, Any]:
        """A function that takes a step with so many samples, and one that says its largest peak so far in bytes."""
        before = heap.live()
        model, blocks = made(MEMBERS[name])
        wrapped = wrap(model, blocks)
        del model, blocks
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)

        def step(samples: int) -> None:
            wrapped(*batch(samples)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def peak(samples: int) -> float:
            step(samples)
            dist.barrier()
            heap.live()
            heap.restart()
            step(samples)
            return slowest(heap.peak() - before)

        return step, peak

    units = int(unit)
    # One unit of each, and the limit between them.
    found = {each: contestant(wrap) for each, wrap in PEERS.items()}
    peaks = {each: peak(units) for each, (_, peak) in found.items()}
    limit = int((min(peaks.values()) + max(peaks.values())) / 2)
    rows: dict[str, dict[str, Any]] = {}
    steps: dict[str, Any] = {}
    for each, (step, peak) in found.items():
        n, at = most_units(lambda n, peak=peak: peak(n * units), peaks[each], limit)
        rows[each] = {"batch": n * units, "peak_bytes": at}
        if n:
            steps[each] = step
    found.clear()

    model = made(MEMBERS[name])[0]
    description = osdp.describe(model, *batch(units))
    hardware = osdp.profile(model, *batch(units), seconds=float(profile_seconds))
    del model
    for each, space in ((BASE, {"granularity": 1}), (OSDP, {})):
        plans: list[Any] = [None]
        if dist.get_rank() == 0:  # the ranks share cores, and rank 0's plan is the one that counts
            plans = [searched(osdp, description, hardware, limit, units, space)]
        dist.broadcast_object_list(plans)
        rows[each] = {"batch": 0, "peak_bytes": 0, "over_the_limit": 0}
        for plan in plans[0]:
            step, peak = contestant(under(plan))
            at = peak(plan.batch_size)
            if at <= limit:
                rows[each] |= {
                    "batch": plan.batch_size,
                    "peak_bytes": at,
                    "limit_of_plan": plan.memory_limit_bytes,
                }
                rows[each] |= {"predicted_s": plan.predicted.step_time_s}
                rows[each] |= {"predicted_bytes": plan.predicted.peak_memory_bytes, "modes": modes_of(plan)}
                steps[each] = step
                break
            rows[each]["over_the_limit"] += 1
            del step, peak

    times: dict[str, list[float]] = {each: [] for each in steps}
    names = list(steps)
    for turn in range(int(rounds)):  # each has taken two steps already, for its peak
        at = turn % len(names)
        for each in names[at:] + names[:at]:
            dist.barrier()
            begin = time.perf_counter()
            steps[each](rows[each]["batch"])
            times[each].append(slowest(time.perf_counter() - begin))
    for each, taken in times.items():
        rows[each] |= {"step_s": median(taken), "rate": rows[each]["batch"] * ranks / median(taken)}
    return {"limit_bytes": limit, "rows": rows}


def most_units(peak: Any, of_one: float, limit: int) -> tuple[int, float]:
    """The most units whose peak fits, and that peak: from a line through one and two, and downwards from there."""
    if of_one > limit:
        return 0, of_one
    of_two = peak(2)
    if of_two > limit:
        return 1, of_one
    each = max(1.0, of_two - of_one)
    n = min(MOST_UNITS, 2 + int((limit - of_two) // each))
    while n > 2:
        if (at := peak(n)) <= limit:
            return n, at
        n -= 1
    return 2, of_two


def searched(
    osdp: Any, description: Any, hardware: Any, limit: int, unit: int, space: dict[str, Any]
) -> list[Any]:
    """Plans for each batch that fits, the fastest per sample first."""
    plans = []
    for n in TRIED_UNITS:
        try:
            plan = osdp.search(
                description, memory=limit, hardware=hardware, batch_size=n * unit, checkpoint=False, **space
            )
        except osdp.InfeasibleError:
            break
        plans.append(plan)
    return sorted(plans, key=lambda p: p.predicted.step_time_s / p.batch_size)


def made(widths: list[int]) -> tuple[Any, list[Any]]:
    """A GPT of one block per width, neighbours of different widths joined by a linear layer; and its blocks."""
    import torch
    from support.gpt import Block
    from torch import Tensor, nn

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(VOCABULARY, widths[0])
            self.position = nn.Parameter(torch.zeros(TOKENS, widths[0]))
            self.joins = nn.ModuleList(
                nn.Identity() if a == b else nn.Linear(a, b)
                for a, b in zip([widths[0], *widths], widths, strict=False)
            )
            self.blocks = nn.ModuleList(Block(w) for w in widths)
            self.head = nn.Linear(widths[-1], VOCABULARY)

        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            x = self.token(tokens) + self.position
            for join, block in zip(self.joins, self.blocks, strict=True):
                x = block(join(x))
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    model = Stack()
    return model, list(model.blocks)


def modes_of(plan: Any) -> dict[str, int]:
    """Operators by mode, or in slices."""
    kinds = [c.mode if c.granularity == 1 else "in slices" for c in plan.choices.values()]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}


def show(run: dict[str, Any], console: Console) -> None:
    title = f"{run['family']}, {run['speed']}, {run['limit_bytes'] / 1e6:.1f} MB"
    table = Table(title=title, title_justify="left")
    for column in ("", "batch", "peak, MB", "step, s", "predicted", "samples/s", f"over {AGAINST}"):
        table.add_column(column, justify="left" if not column else "right")
    rows = run["rows"]
    base = rows[AGAINST].get("rate")
    for each, row in rows.items():
        rate, told = row.get("rate"), row.get("predicted_s")
        table.add_row(
            each,
            str(row["batch"]) if rate else "OOM",
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['step_s']:.3f}" if rate else "",
            f"{told:.3f} ({told / row['step_s'] - 1:+.1%})" if told else "",
            f"{rate:,.1f}" if rate else "",
            f"{rate / base - 1:+.0%}" if rate and base else "",
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--speeds", nargs="+", default=["200mbit"])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--unit", type=int, default=32, help="sequences of one unit, per rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile-seconds", type=float, default=20)
    parser.add_argument("--only", nargs="+", choices=MEMBERS, default=list(MEMBERS))
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(machine_line(machine()))
    stored: list[dict[str, Any]] = []
    if arguments.json and arguments.json.exists():
        stored = json.loads(arguments.json.read_text())["runs"]
    for family in arguments.only:
        for speed in arguments.speeds:
            asked = {"family": family, "speed": speed}
            asked |= {key: getattr(arguments, key) for key in ("ranks", "hosts", "unit", "rounds")}
            found = next((run for run in stored if asked.items() <= run.items()), None)
            if found is None:
                given = [family, str(arguments.unit), str(arguments.rounds), str(arguments.profile_seconds)]
                here, began = machine(), time.perf_counter()
                ranks, hosts = arguments.ranks, arguments.hosts
                measured = run_ranks(__file__, given, ranks, hosts=hosts, rate=speed, seconds=3600)
                found = asked | {"machine": here, "wall_s": time.perf_counter() - began} | measured
                stored = [r for r in stored if (r["family"], r["speed"]) != (family, speed)] + [found]
                if arguments.json:
                    arguments.json.write_text(json.dumps({"runs": stored}, indent=1) + "\n")
            show(found, console)
    return 0


if __name__ == "__main__":
    if not as_rank(measure, patience=600):
        sys.exit(main())
