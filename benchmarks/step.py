"""One training step of a small GPT: OSDP's modes and searched plans beside DDP, FSDP1, FSDP2 and FairScale.

    python benchmarks/step.py [--json FILE] [--rounds N] [--hosts 2 --rate 1gbit] [--ranks 2]

8 layers x 512, 25.8 million parameters, batch 2 x 64 tokens per rank, fp32, fused AdamW for all, CPU and gloo. All
contestants live in the same processes and take turns, one step each, in every round, the first one another one each
time: a machine whose speed drifts treats them alike. A step's time is the slowest rank's; `ratio` is the median over
rounds of its quotient with the step of another contestant in the same round. `memory` is the peak of the live heap in
a step over what was live before the contestant was made (heap_peak.c): parameters, optimizer state and all temporaries.

The searched plans: `osdp.profile` measures this machine first, `osdp.search` plans for 25, 50 and 75% of the way
between the least memory that any plan needs and what the fastest plan takes, without recomputation (the peers do none).

--hosts: network namespaces, each behind a link of --rate (needs root and iproute2).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table
from support.launch import as_rank, run_ranks, slowest
from support.machine import machine, machine_line
from support.wire import link_seconds

WARM_UP = 3
SHARES = (25, 50, 75)  # percent
SEARCHED = "OSDP searched, {}%"


def measure(rounds: str, profile_seconds: str, hosts: str, *only: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.gpt import BATCH, batch, make_gpt
    from support.heap import Heap
    from support.peers import PEERS, under, uniform_plans
    from support.wire import link_bytes

    import osdp

    generator = torch.Generator().manual_seed(dist.get_rank())
    model = make_gpt()[0]
    description = osdp.describe(model, *batch(generator))
    searched: dict[str, Any] = {}
    if not only:
        hardware = osdp.profile(model, *batch(generator), seconds=float(profile_seconds))
        searched = searched_plans(osdp, description, hardware, BATCH)
    del model
    ranks = dist.get_world_size()
    plans = {**uniform_plans(description, hybrid=1 < int(hosts) < ranks), **searched}
    wraps = {**PEERS, **{name: under(plan) for name, plan in plans.items()}}
    if only:
        wraps = {name: wraps[name] for name in ("DDP", *only)}

    heap = Heap()
    steps, memory = {}, {}
    for name, wrap in wraps.items():
        before = heap.live()
        wrapped = wrap(*make_gpt())
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True)

        def step(model: Any = wrapped, optimizer: Any = optimizer) -> torch.Tensor:
            loss = model(*batch(generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        for warm in range(WARM_UP):
            dist.barrier()
            if warm == WARM_UP - 1:
                heap.restart()
            step()
        memory[name] = slowest(heap.peak() - before)
        steps[name] = step
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(int(rounds)):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            begin = time.perf_counter()
            steps[name]()
            times[name].append(slowest(time.perf_counter() - begin))
    return {
        name: {
            "median_s": median(times[name]),
            "least_s": min(times[name]),
            "quartiles_s": quantiles(times[name], n=4)[::2],
            "memory_bytes": int(memory[name]),
            "predicted_s": searched[name].predicted.step_time_s if name in searched else None,
            "limit_bytes": searched[name].memory_limit_bytes if name in searched else None,
            "modes": modes_of(searched[name]) if name in searched else None,
            "link_bytes": link_bytes(plans[name], ranks, int(hosts)) if name in plans else None,
            "times_s": times[name],
        }
        for name in names
    }


def searched_plans(osdp: Any, description: Any, hardware: Any, batch_size: int) -> dict[str, Any]:
    def search(memory: int | str) -> Any:
        return osdp.search(
            description, memory=memory, hardware=hardware, batch_size=batch_size, checkpoint=False
        )

    try:
        search(1)
        raise AssertionError("a plan fits one byte")
    except osdp.InfeasibleError as error:
        least = error.smallest_limit
    most = search("1TiB").predicted.peak_memory_bytes
    return {SEARCHED.format(share): search(least + (most - least) * share // 100) for share in SHARES}


def modes_of(plan: Any) -> dict[str, int]:
    """Parameter bytes by mode and slices."""
    size = {o.name: o.parameter_bytes for o in plan.description.operators}
    result: dict[str, int] = {}
    for name, choice in plan.choices.items():
        key = (
            choice.mode
            if choice.granularity == 1
            else f"{choice.slices_sharded} of {choice.granularity} slices"
        )
        result[key] = result.get(key, 0) + size[name]
    return result


def ratio(rows: dict[str, Any], one: str, *others: str) -> float:
    """The median over rounds of one's time over the best of the others (by their medians)."""
    best = min(others, key=lambda name: rows[name]["median_s"])
    return median(a / b for a, b in zip(rows[one]["times_s"], rows[best]["times_s"], strict=True))


def judge(rows: dict[str, Any], ranks: int, hosts: int, rate: str) -> list[dict[str, Any]]:
    """The goals that this run can tell something about: ratio and at most."""
    if ranks > 2:  # more ranks than this machine has cores: what counts is how well the links are used
        return [
            {"goal": f"{name} over the link's limit, {limit:.2f} s", "ratio": (r := row["median_s"] / limit)}
            | {"at_most": 1.15, "reached": r <= 1.15}
            for name, row in rows.items()
            if row["link_bytes"] and (limit := link_seconds(row["link_bytes"], rate))
        ]
    peers = tuple(name for name in ("FSDP1", "FSDP2", "FairScale") if name in rows)
    goals = [
        (
            "FULL_SHARD over the best of " + ", ".join(peers),
            "OSDP FULL_SHARD",
            peers,
            0.85 if hosts == 1 else 0.55,
        )
    ]
    if hosts > 1:
        goals.append(("SHARD_GRAD_OP over DDP", "OSDP SHARD_GRAD_OP", ("DDP",), 0.90))
    goals.append(("NO_SHARD over DDP", "OSDP NO_SHARD", ("DDP",), 1.0 if hosts == 1 else 0.97))
    for name in filter(rows.__contains__, map(SEARCHED.format, SHARES)):
        share = name.removeprefix("OSDP searched, ")
        limit = rows[name]["limit_bytes"]
        fits = "fits" if rows["FSDP2"]["memory_bytes"] <= limit else "needs more memory"
        goals.append((f"searched, {share}, over FSDP2 (which {fits})", name, ("FSDP2",), 1 / 1.22))
        single = [n for n in rows if n.startswith("OSDP") and n not in map(SEARCHED.format, SHARES)]
        fitting = [n for n in single if rows[n]["memory_bytes"] <= limit]
        if fitting:
            best = min(fitting, key=lambda n: rows[n]["median_s"])
            goals.append((f"searched, {share}, over {best[5:]}, the best mode that fits", name, (best,), 1.0))
    return [
        {"goal": text, "ratio": (r := ratio(rows, one, *others)), "at_most": most, "reached": r <= most}
        for text, one, others, most in goals
        if others and {one, *others} <= rows.keys()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc writes it")
    parser.add_argument("--profile-seconds", type=float, default=10)
    parser.add_argument(
        "--only", nargs="+", default=[], help="these contestants, beside DDP (no searched plans)"
    )
    arguments = parser.parse_args()
    console = Console(width=120)
    here = machine()
    given = [str(arguments.rounds), str(arguments.profile_seconds), str(arguments.hosts), *arguments.only]
    rows = run_ranks(__file__, given, arguments.ranks, hosts=arguments.hosts, rate=arguments.rate)
    where = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts, {arguments.rate}"
    table = Table(title=f"one training step, {arguments.ranks} ranks, {where}", title_justify="left")
    for column in (
        "",
        "median s",
        "quartiles",
        "least s",
        "over DDP",
        "memory MB",
        "limit MB",
        "predicted s",
        "link's s",
    ):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, row in rows.items():
        low, high = row["quartiles_s"]
        table.add_row(
            name,
            f"{row['median_s']:.3f}",
            f"{low:.3f} - {high:.3f}",
            f"{row['least_s']:.3f}",
            f"{ratio(rows, name, 'DDP'):.2f}",
            f"{row['memory_bytes'] / 1e6:.0f}",
            f"{row['limit_bytes'] / 1e6:.0f}" if row["limit_bytes"] else "",
            f"{row['predicted_s']:.3f}" if row["predicted_s"] else "",
            f"{link_seconds(row['link_bytes'], arguments.rate):.3f}" if row["link_bytes"] else "",
        )
    console.print(table)
    for name, row in rows.items():
        if row["modes"]:
            console.print(f"{name}: " + ", ".join(f"{b / 1e6:.1f} MB {m}" for m, b in row["modes"].items()))
    goals = judge(rows, arguments.ranks, arguments.hosts, arguments.rate)
    for g in goals:
        console.print(
            f"{g['goal']}: {g['ratio']:.2f} (at most {g['at_most']:.2f}): {'yes' if g['reached'] else 'NO'}"
        )
    console.print(machine_line(here))
    if arguments.json:
        result = {"machine": here, "ranks": arguments.ranks, "hosts": arguments.hosts}
        result |= {"rate": arguments.rate if arguments.hosts > 1 else None, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps(result | {"contestants": rows, "goals": goals}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
