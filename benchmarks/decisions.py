"""What `osdp.search` decides for the published models (published.py) on assumed machines, by their prices before and now.

    python benchmarks/decisions.py [--json results/decisions.json] [--descriptions FOLDER]

Before, a machine that nobody had measured was 80% of its datasheet's rate for products, whose flops were all that had a
price, and a ring of hops that all took what the slowest took. Each search has the machine's memory, bf16, 2,048 tokens and
a batch size that is free. Printed are both plans, and how much faster the new one plays, by today's prices, than the old.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from support import mpt
from support.machine import machine

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective, Hardware

# layers, width, heads
MODELS = {
    "125m": (12, 768, 12),
    "1b": (24, 2048, 16),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
}
MACHINES = {"a100-8": (8, 1), "a100-2x8": (16, 2), "h100-8": (8, 1), "h100-2x8": (16, 2)}
PEAK = {"a100": 312e12, "h100": 989.5e12}
VOCABULARY, TOKENS = 50368, 2048


def before(hardware: Hardware) -> Hardware:
    """With the prices that assumed machines had."""

    def link(now: Collective, alpha_s: float) -> Collective:
        return Collective(alpha_s, now.beta_s_per_byte)

    return replace(
        hardware,
        kernel_rates=None,
        protocols=(),
        stolen_computation=0.0,
        flops_per_s_by_dtype={"bfloat16": 0.8 * PEAK[hardware.name[:4]]},
        all_gather=link(hardware.all_gather, 3e-6),
        reduce_scatter=link(hardware.reduce_scatter, 3e-6),
        all_reduce=link(hardware.all_reduce, 3e-6),
        between_hosts=hardware.between_hosts and link(hardware.between_hosts, 1e-5),
    )


def described(name: str, folder: Path) -> ModelDescription:
    file = folder / f"{name}-{TOKENS}-bf16.json"
    if not file.exists():
        model, sample = mpt.make(*MODELS[name], VOCABULARY, TOKENS)
        osdp.describe(model, *sample, precision="bf16").save(file)
    return ModelDescription.load(file)


def decided(plan: osdp.Plan) -> dict[str, Any]:
    modes = Counter(c.mode for name, c in plan.choices.items())
    assert plan.predicted is not None
    return {
        "batch": plan.batch_size,
        "recomputed": sum(way is not None for way in plan.recompute.values()),
        "modes": dict(modes.most_common()),
        "samples_per_s": plan.predicted.throughput,
    }


def compared(name: str, machine_name: str, folder: Path) -> dict[str, Any] | None:
    hardware, (ranks, hosts) = Hardware.load(machine_name), MACHINES[machine_name]
    description = described(name, folder)
    try:
        then, now = (
            osdp.search(description, hardware=h, world_size=ranks, hosts=hosts, precision="bf16")
            for h in (before(hardware), hardware)
        )
    except osdp.InfeasibleError:
        return None
    old_s = then.simulate(hardware, ranks, hosts).step_time_s / then.batch_size
    new_s = now.simulate(hardware, ranks, hosts).step_time_s / now.batch_size
    return {"before": decided(then), "now": decided(now), "faster": old_s / new_s - 1}


def line(decision: Mapping[str, Any]) -> str:
    modes = ", ".join(f"{count} {mode}" for mode, count in decision["modes"].items())
    blocks = f", {decision['recomputed']} blocks recomputed" if decision["recomputed"] else ""
    return f"batch {decision['batch']}, {modes}{blocks}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--descriptions", type=Path)
    given = parser.parse_args()
    folder = given.descriptions or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    print("| model | machine | before | now | faster |\n|---|---|---|---|---|")
    for name in MODELS:
        for machine_name in MACHINES:
            found = compared(name, machine_name, folder)
            if found is None:
                print(f"| {name} | {machine_name} | nothing fits | | |")
                continue
            rows.append({"model": name, "machine": machine_name, **found})
            cells = (line(found["before"]), line(found["now"]), f"{found['faster']:.1%}")
            print(f"| {name} | {machine_name} | {' | '.join(cells)} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
