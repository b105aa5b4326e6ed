"""The search against its claims: every instance of tests/data/search_instances.json, exact beside the
paper's search.

    python benchmarks/search.py [--json FILE] [--repeat N] [--dfs-seconds S]

One thread. Every time is the median and the maximum over the repeats (operating system noise included).
`dfs` is the paper's depth-first search with its two prunings, stopped after --dfs-seconds: nodes, and how
far above the optimum it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import osdp

INSTANCES = Path(__file__).parent.parent / "tests" / "data" / "search_instances.json"


def measure(instance: dict, repeat: int, dfs_seconds: float) -> dict:
    options = [[tuple(o) for o in list_] for list_ in instance["operators"]]
    runs = [osdp.solve(options, instance["limit"])]
    # Slow instances need no repeats to be told from fast ones.
    while len(runs) < repeat and sum(r.seconds for r in runs) < 2.0:
        runs.append(osdp.solve(options, instance["limit"]))
    row = {
        "name": instance["name"],
        "operators": len(options),
        "options": len(options[0]),
        "median_ms": 1e3 * statistics.median(r.seconds for r in runs),
        "max_ms": 1e3 * max(r.seconds for r in runs),
        "nodes": runs[0].nodes,
        "optimal": runs[0].optimal and runs[0].time == instance["best_time"],
    }
    try:
        dfs = osdp.solve(options, instance["limit"], method="dfs", time_limit=dfs_seconds)
        row |= {
            "dfs_ms": 1e3 * dfs.seconds,
            "dfs_nodes": dfs.nodes,
            "dfs_over": dfs.time / instance["best_time"] - 1,
            "dfs_optimal": dfs.optimal,
        }
    except osdp.InfeasibleError:
        row |= {"dfs_ms": 1e3 * dfs_seconds, "dfs_nodes": None, "dfs_over": None, "dfs_optimal": False}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--dfs-seconds", type=float, default=0.2)
    arguments = parser.parse_args()
    instances = json.loads(INSTANCES.read_text())["instances"]
    rows = []
    print(f"{'instance':22} {'ops':>4} {'median ms':>10} {'max ms':>10} {'nodes':>10} {'optimum':>8}", end="")
    print(f" | {'dfs ms':>7} {'nodes':>9} {'over the optimum':>17}")
    for instance in instances:
        row = measure(instance, arguments.repeat, arguments.dfs_seconds)
        rows.append(row)
        over = "no plan found" if row["dfs_over"] is None else f"{row['dfs_over']:.3%}"
        print(
            f"{row['name']:22} {row['operators']:4} {row['median_ms']:10.3f} {row['max_ms']:10.3f}"
            f" {row['nodes']:10} {'yes' if row['optimal'] else 'NO':>8}"
            f" | {row['dfs_ms']:7.0f} {row['dfs_nodes'] or '-':>9} {over:>17}",
            flush=True,
        )
    medians = [r["median_ms"] for r in rows]
    summary = {
        "median_of_medians_ms": statistics.median(medians),
        "max_ms": max(r["max_ms"] for r in rows),
        "slowest": max(rows, key=lambda r: r["max_ms"])["name"],
        "all_optimal": all(r["optimal"] for r in rows),
    }
    print(
        f"median {summary['median_of_medians_ms']:.3f} ms, "
        f"slowest {summary['slowest']} {summary['max_ms']:.0f} ms, "
        f"{'all optimal' if summary['all_optimal'] else 'NOT ALL OPTIMAL'}"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"instances": rows, "summary": summary}, indent=1) + "\n")
    return 0 if summary["all_optimal"] else 1


if __name__ == "__main__":
    sys.exit(main())
