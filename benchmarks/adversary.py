"""Whether a plan that `osdp.search` did not return plays faster than the one it did, and whether more memory helps.

    python benchmarks/adversary.py --json results/adversary.json [--instances 200] [--plays 3000] [--seconds 30]

For each random problem (support/random_instances.py) an adversary plays other plans that fit: those of searches under
lower limits, with fewer modes, without recomputation, with communication that costs more or less in the objective, and
what a local search with random restarts makes of them (support/local_search.py). Its budget is a number of plays, and
seconds where they end first. Then, for --rising instances, the throughput over 8 rising limits. What --json holds is
not done again. The times are played, so that other work on the machine does not matter.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.local_search import Playground, Point, as_candidate, climb
from support.machine import machine, machine_line
from support.random_instances import Instance, instance

import osdp
from osdp.base.json_files import save_text
from osdp.errors import InfeasibleError
from osdp.planning.arguments import batches_of
from osdp.planning.core_choices import core_plan
from osdp.planning.search_problem import SearchProblem

EXPOSURES = (0.0, 0.03, 0.1, 0.3, 0.6, 1.5, 3.0, 10.0, 100.0)
LIMITS = 8
RIVAL_S = 1.0


def rivals(given: Instance) -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments of other searches, by name."""
    hardware = given.arguments["hardware"]
    for exposed in EXPOSURES:
        yield (
            f"exposed {exposed}",
            {"hardware": replace(hardware, exposed_communication=exposed)},
        )
    for share in (0.95, 0.9, 0.8, 0.65, 0.5):
        yield f"{share} of the limit", {"memory": round(given.limit * share)}
    yield "no recomputation", {"checkpoint": False}
    for modes in (
        ("NO_SHARD", "FULL_SHARD"),
        ("NO_SHARD", "SHARD_GRAD_OP"),
        ("FULL_SHARD",),
        ("SHARD_GRAD_OP",),
    ):
        yield "/".join(modes), {"modes": modes}
        yield "/".join(modes) + ", whole operators", {"modes": modes, "granularity": 1}


def point_of(ground: Playground, plan: osdp.Plan) -> Point | None:
    core = core_plan(plan)
    choices = [as_candidate(choice) for choice in core.choices]
    return ground.point((plan.batch_size, plan.accumulation), choices, core.blocks, plan.prefetch)


def playground(given: Instance, plan: osdp.Plan) -> Playground:
    problem = SearchProblem.of(plan)
    batches = batches_of(
        given.arguments.get("batch_size", "auto"), given.arguments.get("global_batch_size"), problem.ranks
    )
    return Playground(plan.description, problem.planner, batches, ("none", "hold", "regather"), given.limit)


def attack(number: int, plays: int, seconds: float) -> dict[str, Any]:
    given = instance(number)
    asked_at = time.monotonic()
    plan = osdp.search(given.description, memory=given.limit, **given.arguments)
    began = time.monotonic()
    search_s = began - asked_at
    ground = playground(given, plan)
    returned = point_of(ground, plan)
    assert returned is not None and plan.certificate is not None and plan.predicted is not None
    mine = ground.per_sample_ps(returned)
    found = {returned: "returned"}
    for name, changes in rivals(given):
        if time.monotonic() > began + seconds / 2:
            break
        try:
            asked = {"memory": given.limit, "time_limit": RIVAL_S, **given.arguments, **changes}
            rival = osdp.search(given.description, **asked)
        except InfeasibleError:
            continue
        at = point_of(ground, rival)
        if at is not None and ground.fits(at):
            found.setdefault(at, name)
    seed = min(found, key=ground.per_sample_ps)
    end = began + seconds
    best = climb(
        ground,
        list(found),
        random.Random(f"adversary {number}"),
        lambda: ground.plays < plays and time.monotonic() < end,
    )
    theirs = min(ground.per_sample_ps(seed), best[1] if best is not None else mine)
    return {
        "instance": given.name,
        "machine": given.machine,
        "limit": given.limit,
        "least": given.least,
        "most": given.most,
        "returned_ps": mine,
        "seed_ps": ground.per_sample_ps(seed),
        "seed": found[seed],
        "adversary_ps": theirs,
        "gap": plan.certificate.gap,
        "search_s": search_s,
        "plays": ground.plays,
        "seconds": time.monotonic() - began,
    }


def rising(number: int) -> dict[str, Any]:
    given = instance(number)
    limits = [round(given.least * (given.most / given.least) ** (i / (LIMITS - 1))) for i in range(LIMITS)]
    speeds = []
    for limit in limits:
        predicted = osdp.search(given.description, memory=limit, **given.arguments).predicted
        assert predicted is not None
        speeds.append(predicted.throughput)
    return {"instance": given.name, "limits": limits, "throughput": speeds, "fall": largest_fall(speeds)}


def largest_fall(speeds: Sequence[float]) -> float:
    """The most by which one is below an earlier one."""
    return max(1 - b / max(speeds[: i + 1]) for i, b in enumerate(speeds))


def faster(row: dict[str, Any]) -> float:
    """By which share the adversary's plan is faster."""
    return float(row["returned_ps"] / row["adversary_ps"] - 1)


def table(results: dict[str, Any]) -> str:
    rows = list(results["attacks"].values())
    lines = [
        "| machine | instances | faster by > 1% | by > 5% | mean | worst | by another search alone: > 1% | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in (*sorted({r["machine"] for r in rows}), "all"):
        own = [r for r in rows if name in (r["machine"], "all")]
        by = [faster(r) for r in own]
        seeds = [r["returned_ps"] / r["seed_ps"] - 1 for r in own]
        lines.append(
            f"| {name} | {len(own)} | {sum(x > 0.01 for x in by)} | {sum(x > 0.05 for x in by)} "
            f"| {statistics.fmean(by):.2%} | {max(by):.1%} | {sum(x > 0.01 for x in seeds)} | {max(seeds):.1%} |"
        )
    falls = [r["fall"] for r in results["rising"].values()]
    if falls:
        over = sum(x > 0.01 for x in falls)
        lines.append(
            f"\nRising limits: {len(falls)} instances, {over} with a fall of more than 1%, largest {max(falls):.1%}"
        )
    return "\n".join(lines)


def store(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        save_text(path, json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--rising", type=int, default=20)
    parser.add_argument("--plays", type=int, default=3000, help="of one instance")
    parser.add_argument("--seconds", type=float, default=30, help="of one instance, at most")
    arguments = parser.parse_args()
    budget = {"plays": arguments.plays, "seconds": arguments.seconds}
    results: dict[str, Any] = {"machine": machine(), "budget": budget, "attacks": {}, "rising": {}}
    if arguments.json is not None and arguments.json.exists():
        stored = json.loads(arguments.json.read_text())
        if stored["budget"] == budget:
            results = stored
    for number in range(arguments.instances):
        if str(number) not in results["attacks"]:
            row = results["attacks"][str(number)] = attack(number, arguments.plays, arguments.seconds)
            print(f"{row['instance']}: {faster(row):.2%} ({row['seed']}), {row['plays']} plays", flush=True)
            store(arguments.json, results)
    for number in range(arguments.rising):
        if str(number) not in results["rising"]:
            results["rising"][str(number)] = rising(number)
            store(arguments.json, results)
    print(machine_line(results["machine"]))
    print(table(results))


if __name__ == "__main__":
    main()
