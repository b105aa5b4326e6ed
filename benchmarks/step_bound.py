"""How near the plans of `osdp.search` are to the bound on every simulated step, and how long it searches.

    python benchmarks/step_bound.py [--json results/step-bound.json] [--only "W&S"] [--gap 0.005]

On the models, ranks and limits of benchmarks/planner.py, on `rtx-titan-8`. The time is that of the search in C++, from a
description to the plan; the gap is what the plan's certificate states: how much faster the simulated step of another plan
can be at most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import osdp
from benchmarks.planner import instances


def measure(only: str, gap: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, description, ranks, gigabytes in instances(only, everywhere=False):
        began = time.perf_counter()
        row: dict[str, Any] = {"instance": name, "family": name[:3], "feasible": True}
        try:
            plan = osdp.search(
                description,
                memory=int(gigabytes * 1e9),
                world_size=ranks,
                hardware="rtx-titan-8",
                batch_size="auto",
                gap=gap,
            )
        except osdp.InfeasibleError:
            row["feasible"] = False
        row["ms"] = 1e3 * (time.perf_counter() - began)
        if row["feasible"]:
            assert plan.certificate is not None and plan.predicted is not None
            row |= {
                "gap": plan.certificate.gap,
                "checked_gap": plan.certificate.checked_gap,
                "samples_per_s": plan.predicted.throughput,
            }
        rows.append(row)
        print(
            *(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
            sep=", ",
            flush=True,
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """One line per family and one for all."""
    lines = [
        "| family | feasible | median gap | largest gap | median ms | max ms |",
        "|---|---|---|---|---|---|",
    ]
    for family in (*dict.fromkeys(r["family"] for r in rows), "all"):
        own = [r for r in rows if r["feasible"] and family in ("all", r["family"])]
        if not own:
            continue
        gaps, times = [r["gap"] for r in own], [r["ms"] for r in own]
        lines.append(
            f"| {family} | {len(own)} | {statistics.median(gaps):.2%} | {max(gaps):.2%} "
            f"| {statistics.median(times):.0f} | {max(times):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--gap", type=float, default=0.005)
    arguments = parser.parse_args()
    rows = measure(arguments.only, arguments.gap)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"gap": arguments.gap, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
