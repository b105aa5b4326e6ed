"""The bare search against its claims, one thread: osdp.solve on every instance of
tests/data/search_instances.json and on 100,000 operators, beside general solvers and the paper's own search.

    python benchmarks/search.py [--json FILE] [--repeat N] [--dfs-seconds S] [--solver-seconds S]
                                [--random N] [--random-program FILE]

A time is the search's own clock, over the repeats: the least (nearest to an idle machine), the median and the
largest (what else runs on the machine included); `cpu` is the median of the processor time of the whole call.
`noise` measures the machine: the same fixed work, again and again, its median and largest time over its least.
General solvers (HiGHS, CP-SAT, CBC; a dash where not installed) run once per instance, until a time limit;
their plans are summed again in integers. `dfs` is the paper's depth-first search with its two prunings.
--random N runs the C++ comparison with brute force (tests/cpp/test_branch_random) on N random problems.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from support import solvers

import osdp
from osdp.planning.solve import check_solution

ROOT = Path(__file__).parent.parent
INSTANCES = ROOT / "tests" / "data" / "search_instances.json"
IRREGULAR = ("118 distinct", "rand")  # what the names of the hard instances contain


def timed(repeat: int, options: Any, limit: int, **arguments: Any) -> tuple[osdp.Solution, dict[str, float]]:
    walls, cpus = [], []
    for _ in range(repeat):
        start = time.thread_time()
        solution = osdp.solve(options, limit, **arguments)
        cpus.append(1e3 * (time.thread_time() - start))
        walls.append(1e3 * solution.seconds)
    figures = {
        "least_ms": min(walls),
        "median_ms": median(walls),
        "max_ms": max(walls),
        "cpu_ms": median(cpus),
    }
    return solution, figures


def noise(repeat: int = 200) -> dict[str, float]:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        sum(range(50000))
        times.append(time.perf_counter() - start)
    return {"median_over_least": median(times) / min(times), "largest_over_least": max(times) / min(times)}


def measure(
    instance: dict, repeat: int, dfs_seconds: float, others: solvers.Installed | None, solver_seconds: float
) -> dict:
    options = [[tuple(o) for o in list_] for list_ in instance["operators"]]
    best, limit = instance["best_time"], instance["limit"]
    solution, figures = timed(repeat, options, limit)
    row = (
        {"name": instance["name"], "operators": len(options)}
        | figures
        | {
            "nodes": solution.nodes,
            "optimal": solution.optimal and solution.time == best,
            "certificate": check_solution(options, limit, solution) == "",
        }
    )
    quick, figures = timed(repeat, options, limit, gap=2e-8)
    row["gap_2e8"] = figures | {"gap": (quick.time - quick.lower_bound) / quick.time}
    row["dfs"] = measure_dfs(options, limit, best, dfs_seconds)
    answers = others.solve(solvers.group(options, limit), solver_seconds) if others else {}
    for name, answer in answers.items():
        row[name] = {
            "ms": 1e3 * answer.seconds,
            "over": None if answer.time is None else answer.time / best - 1,
            "optimal": answer.time == best,
            "claims_optimal": answer.claims_optimal,
            "times_slower": 1e3 * answer.seconds / row["median_ms"],
        }
    return row


def measure_dfs(options: list, limit: int, best: int, seconds: float) -> dict:
    try:
        dfs = osdp.solve(options, limit, method="dfs", time_limit=seconds)
    except osdp.InfeasibleError:
        return {"ms": 1e3 * seconds, "nodes": None, "over": None, "ended": False}
    return {"ms": 1e3 * dfs.seconds, "nodes": dfs.nodes, "over": dfs.time / best - 1, "ended": dfs.optimal}


def large(kinds: int, room: float, repeat: int) -> dict:
    """100,000 operators with 17 options each, drawn from so many kinds, as one array; solved to a gap of 1e-6."""
    rng = np.random.default_rng(kinds)
    parameters = rng.integers(1000, 10**7, kinds)[:, None]
    sharded = np.arange(17)[None, :]  # of 16 slices
    memory = 16 * parameters - 14 * parameters * sharded // 16
    latency = 140_000_000 * (sharded > 0) + 3 * 140_000_000 * sharded
    times = 1400 * parameters + 350 * parameters * sharded // 16 + latency
    table = np.stack([times, memory], -1).astype(np.int64)[rng.integers(0, kinds, 100_000)]
    least, most = int(table[:, :, 1].min(1).sum()), int(table[:, :, 1].max(1).sum())
    limit = least + int(room * (most - least))
    solution, figures = timed(repeat, table, limit, gap=1e-6)
    return (
        {"name": f"100,000 x 17, {kinds} kinds @{room}"}
        | figures
        | {
            "gap": (solution.time - solution.lower_bound) / solution.time,
            "certificate": check_solution(table, limit, solution) == "",
        }
    )


def random_checks(program: Path, problems: int) -> dict | None:
    if problems == 0 or not program.exists():
        return None
    start = time.perf_counter()
    run = subprocess.run([program, str(problems)], capture_output=True, text=True)
    return {
        "problems": problems,
        "agree": run.returncode == 0,
        "seconds": time.perf_counter() - start,
        "output": run.stdout.strip(),
    }


def machine() -> dict:
    names = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "processor": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "noise": noise(),
    }


def print_row(row: dict) -> None:
    dfs = row["dfs"]
    over = "no plan" if dfs["over"] is None else f"{dfs['over']:.3%}"
    others = ""
    for name in ("HiGHS", "CP-SAT", "CBC"):
        if name not in row:
            others += f" {'-':>22}"
            continue
        s = row[name]
        result = "no plan" if s["over"] is None else "optimum" if s["optimal"] else f"+{s['over']:.1e}"
        others += f" {s['ms']:7.0f} ms {result:>11}"
    print(
        f"{row['name']:22} {row['operators']:4} {row['least_ms']:8.3f} {row['median_ms']:8.3f} {row['max_ms']:8.3f}"
        f" {row['cpu_ms']:8.3f} {row['nodes']:9} {'yes' if row['optimal'] and row['certificate'] else 'NO':>4}"
        f" {row['gap_2e8']['median_ms']:8.3f} |{others} | {dfs['nodes'] or '-':>9} {over:>8}",
        flush=True,
    )


def summary_of(rows: list[dict]) -> dict:
    parts = {
        "regular": [r for r in rows if not any(x in r["name"] for x in IRREGULAR)],
        "irregular": [r for r in rows if any(x in r["name"] for x in IRREGULAR)],
    }
    summary: dict[str, Any] = {"all_optimal": all(r["optimal"] and r["certificate"] for r in rows)}
    for name, part in parts.items():
        for figure in ("least_ms", "median_ms", "cpu_ms"):
            values = [r[figure] for r in part]
            summary[f"{name}_{figure}"] = {"median": median(values), "max": max(values)}
        gaps = [r["gap_2e8"]["median_ms"] for r in part]
        summary[f"{name}_gap_2e8_ms"] = {"median": median(gaps), "max": max(gaps)}
    for name in ("HiGHS", "CP-SAT", "CBC"):
        slower = [r[name]["times_slower"] for r in rows if name in r]
        if slower:
            summary[name] = {
                "median_times_slower": median(slower),
                "optima": sum(r[name]["optimal"] for r in rows if name in r),
                "wrongly_called_optimal": sum(
                    r[name]["claims_optimal"] and not r[name]["optimal"] for r in rows if name in r
                ),
                "better": sum((r[name]["over"] or 0) < 0 for r in rows if name in r),
            }
    return summary


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--dfs-seconds", type=float, default=0.2)
    parser.add_argument("--solver-seconds", type=float, default=20.0)
    parser.add_argument("--random", type=int, default=0, help="random problems; 10,000,000 take some minutes")
    parser.add_argument("--random-program", type=Path, default=ROOT / "build" / "cpp" / "test_branch_random")
    arguments = parser.parse_args()
    here = machine()
    print(
        f"{here['processor']}, {here['cores']} cores, load {here['load']:.1f}; noise: median "
        f"{here['noise']['median_over_least']:.2f}, largest {here['noise']['largest_over_least']:.2f} of the least"
    )
    print(
        f"{'instance':22} {'ops':>4} {'least ms':>8} {'median':>8} {'max':>8} {'cpu':>8} {'nodes':>9} {'opt':>4}"
        f" {'gap 2e-8':>8} | {'HiGHS':>22} {'CP-SAT':>22} {'CBC':>22} | {'dfs nodes':>9} {'over':>8}"
    )
    others = solvers.Installed() if arguments.solver_seconds > 0 else None
    rows = []
    for instance in json.loads(INSTANCES.read_text())["instances"]:
        rows.append(
            measure(instance, arguments.repeat, arguments.dfs_seconds, others, arguments.solver_seconds)
        )
        print_row(rows[-1])
    big = [large(kinds, room, arguments.repeat) for kinds in (10, 100, 1000) for room in (0.25, 0.75)]
    for row in big:
        print(
            f"{row['name']:32} {row['least_ms']:8.2f} {row['median_ms']:8.2f} {row['max_ms']:8.2f}"
            f" {row['cpu_ms']:8.2f}  gap {row['gap']:.1e}"
        )
    summary = summary_of(rows)
    for name, value in summary.items():
        print(f"{name}: {value}")
    checks = random_checks(arguments.random_program, arguments.random)
    print("random problems:", checks["output"] if checks else "-")
    if arguments.json:
        result = {
            "machine": here,
            "arguments": {k: str(v) for k, v in vars(arguments).items() if "json" not in k},
        }
        result |= {"instances": rows, "large": big, "summary": summary, "random": checks}
        result["arguments"].pop("random_program")
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    fine = (
        summary["all_optimal"] and all(r["certificate"] for r in big) and (checks is None or checks["agree"])
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
