"""Draws what one training step did: computation and communication side by side, as the profiler recorded them.

    python benchmarks/timeline.py [--picture docs/step.png] [--hosts 2 --rate 1gbit] [--ranks 2]

The GPT of benchmarks/step.py under NO_SHARD, FULL_SHARD and half of each; rank 0, the fifth step. A bar of the upper row is
a module's forward or backward, of the lower row a collective; grey is waiting for one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from support.launch import as_rank, run_ranks

PHASES = {  # by the last word of a range's name: row and colour
    "forward": (1, "#4c78a8"),
    "backward": (1, "#72b7b2"),
    "all-gather": (0, "#f58518"),
    "reduce-scatter": (0, "#e45756"),
    "all-reduce": (0, "#b279a2"),
}
WAITING = "#c8c8c8"


def measure() -> dict[str, list[tuple[str, float, float]]]:
    import torch
    import torch.distributed as dist
    from support.gpt import batch, make_gpt
    from torch.profiler import ProfilerActivity, profile

    import osdp

    generator = torch.Generator().manual_seed(dist.get_rank())
    description = osdp.describe(make_gpt()[0], *batch(generator))
    full = osdp.Plan.uniform(description, "FULL_SHARD")
    names = [o.name for o in description.operators if o.parameters]
    half = full.replace({name: osdp.Choice("NO_SHARD") for name in names[::2]})
    recorded = {}
    for title, plan in {
        "NO_SHARD": osdp.Plan.uniform(description, "NO_SHARD"),
        "FULL_SHARD": full,
        "every second operator FULL_SHARD": half,
    }.items():
        model = osdp.fully_shard(make_gpt()[0], plan)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            dist.barrier()
            model(*batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(4):
            step()
        with profile(activities=[ProfilerActivity.CPU]) as recording:
            step()
        events = [(e.name, e.time_range.start / 1e3, e.time_range.end / 1e3) for e in recording.events()]
        begin = min(start for _, start, _ in events)
        recorded[title] = [
            (name, start - begin, end - begin)
            for name, start, end in events
            if name.startswith("wait for ") or name.rpartition(" ")[2] in PHASES
        ]
        recorded[title].append(("end", max(end for _, _, end in events) - begin, 0.0))
    return recorded


def draw(recorded: dict[str, list[Any]], where: str, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axes = plt.subplots(len(recorded), 1, figsize=(11, 1.5 * len(recorded) + 1), sharex=True)
    for axis, (title, events) in zip(axes, recorded.items(), strict=True):
        for name, start, end in events:
            waiting = name.startswith("wait for ")
            if name == "end":
                axis.axvline(start, color="black", linewidth=0.8)
                continue
            row, colour = (1, WAITING) if waiting else PHASES[name.rpartition(" ")[2]]
            edge = {"edgecolor": "white", "linewidth": 0.3}
            axis.broken_barh(
                [(start, end - start)], (row - 0.4, 0.8), facecolors=colour, zorder=2 + waiting, **edge
            )
        axis.set_yticks([0, 1], ["lane", "computation"])
        axis.set_title(title, loc="left", fontsize=10)
    axes[-1].set_xlabel(f"ms; {where}; the line is the end of the optimizer's step")
    patches = [Patch(color=colour, label=phase) for phase, (_, colour) in PHASES.items()]
    patches.append(Patch(color=WAITING, label="waiting"))
    figure.legend(handles=patches, ncols=len(patches), loc="upper center", frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(picture, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, default=Path("build/step.png"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    arguments = parser.parse_args()
    recorded = run_ranks(__file__, [], arguments.ranks, hosts=arguments.hosts, rate=arguments.rate)
    hosts = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts, {arguments.rate}"
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    draw(recorded, f"{arguments.ranks} ranks, {hosts}", arguments.picture)
    print(f"wrote {arguments.picture}")
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
