"""How true predictions are: random plans and searched ones over five models, played and measured.

    python benchmarks/truth.py --json results/truth.json [--settings one-host ...] [--models "deep GPT" ...]
                               [--plans 40] [--steps 7] [--minutes 120] [--peaks]

For each setting (2 ranks on one host, or on two with 1 or 4 Gb/s between them, which needs root and iproute2) and
model, the machine is profiled on the bare model, and each plan's step is measured in turns with the bare model's (every
rank by itself, without communication or optimizer), so that the machine's own spread stands beside each figure, and
played on that profile, made as much slower or faster as the bare model's steps were by then; links between hosts keep
their speed. A searched plan and the plan that seemed faster under its limit are then measured again, in
turns: its regret. Peaks are of the live heap (heap_peak.c), over what the process held before the model. A
run that was stopped goes on where it was: what --json holds is not measured again, but on another machine (processor,
cores, torch) it is refused. With --peaks nothing is timed, so
that other work on the machine does not matter: few steps, a minute a model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.launch import as_rank, largest, run_ranks
from support.machine import another_machine, machine, machine_line
from support.truth_table import show

SETTINGS: dict[str, dict[str, Any]] = {
    "one-host": {"hosts": 1},
    "two-hosts-1gbit": {"hosts": 2, "rate": "1gbit"},
    "two-hosts-4gbit": {"hosts": 2, "rate": "4gbit"},
}
LIMITS = 5
PEAK_STEPS = 3


def measure(name: str, count: str, steps: str, hosts: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.five_models import SUBJECTS
    from support.heap import Heap
    from support.random_plans import random_plans
    from support.truth_table import rival_of

    import osdp

    subject = SUBJECTS[name]
    generator = torch.Generator().manual_seed(dist.get_rank())
    sample = subject.batch(generator)
    bare = subject.make()
    description = osdp.describe(bare, *sample)
    times = int(steps) > 0
    hardware = osdp.profile(bare, *sample, seconds=10 if times else 1)
    batch_size = sample[0].shape[0]
    alone_s = hardware.bare_step_s(batch_size)
    plans = {f"searched {i}": p for i, p in enumerate(searched(description, hardware, batch_size))}
    plans |= {f"random {i}": p for i, p in enumerate(random_plans(description, batch_size, int(count), 15))}
    heap = Heap()

    def step_s(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> float:
        inputs = subject.batch(generator)
        dist.barrier()
        begin = time.perf_counter()
        model(*inputs).backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - begin

    def sharded(plan: osdp.Plan) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = osdp.fully_shard(subject.make(), plan)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def taken(plan: osdp.Plan) -> dict[str, Any]:
        before = heap.live()
        model, optimizer = sharded(plan)
        for _ in range(3):  # until the optimizer has its state and the order of units is known
            if times:
                step_s(bare, None)
            step_s(model, optimizer)
        beside, own, peak = [], [], 0
        for _ in range(int(steps) or PEAK_STEPS):
            if times:
                beside.append(step_s(bare, None))
            heap.restart()
            own.append(step_s(model, optimizer))
            peak = max(peak, heap.peak() - before)
        if not times:
            own.clear()
        return {"bare_s": beside, "step_s": own, "peak_bytes": int(largest(peak)[0])}

    def rematch(own: osdp.Plan, other: osdp.Plan) -> dict[str, Any]:
        """Both in turns: of many plans that were measured once, the fastest was the luckiest, too."""
        pair = sharded(own), sharded(other)
        turns = [[step_s(*side) for side in pair] for _ in range(3 + 2 * int(steps))][3:]
        return {"own_s": [a for a, _ in turns], "rival_s": [b for _, b in turns]}

    rows: list[dict[str, Any]] = []
    for label, plan in plans.items():
        played = plan.simulate(hardware, dist.get_world_size())
        row = {
            "plan": label,
            "played_s": played.step_time_s,
            "played_bytes": played.peak_memory_bytes,
            "certified_bytes": plan.predicted.peak_memory_bytes
            if plan.predicted
            else played.largest_peak_bytes,
            "limit_bytes": plan.memory_limit_bytes,
            **taken(plan),
        }
        if times:
            now = as_fast_as(hardware, plan, statistics.median(row["bare_s"]) / alone_s, int(hosts))
            row["played_now_s"] = plan.simulate(now, dist.get_world_size()).step_time_s
        rows.append(row)
    for row in rows if times else ():
        chosen = [rival_of(row, rows)]
        dist.broadcast_object_list(chosen, 0)
        if chosen[0] is not None:
            row["rematch"] = {"plan": chosen[0], **rematch(plans[row["plan"]], plans[chosen[0]])}
    return {"alone_s": alone_s, "rows": rows, "machine": machine(), "hardware": json.loads(hardware.dumps())}


def as_fast_as(hardware: Any, plan: Any, slowdown: float, hosts: int) -> Any:
    """The profile, on a machine whose processor takes `slowdown` times as long; what travels between hosts does not."""
    from osdp.sharding.drift import Drift, Span, as_it_is

    span = Span(1.0, slowdown)
    now = as_it_is(plan, hardware, Drift(span, span, span))
    if hosts == 1:
        return now
    return replace(
        now,
        all_gather=hardware.all_gather,
        reduce_scatter=hardware.reduce_scatter,
        all_reduce=hardware.all_reduce,
        communication_delay=hardware.communication_delay,
    )


def searched(description: Any, hardware: Any, batch_size: int) -> list[Any]:
    """At LIMITS limits from the least under which there is a plan to what the fastest needs."""
    from support.limits import least_and_most

    import osdp

    arguments = {"hardware": hardware, "batch_size": batch_size}
    least, most = least_and_most(description, **arguments)
    limits = [least + (most - least) * i // (LIMITS - 1) for i in range(LIMITS)]
    return [osdp.search(description, memory=limit, **arguments) for limit in limits]


def main() -> int:
    from support.five_models import SUBJECTS

    from osdp.base.json_files import save_text

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--plans", type=int, default=40)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    found: dict[str, Any] = {}
    if given.json and given.json.exists():
        found = json.loads(given.json.read_text())
        if other := another_machine(found):
            parser.error(
                f"{given.json} was measured on another machine: {other}. Give another file, or delete this one"
            )
    steps = 0 if given.peaks else given.steps
    for setting in given.settings:
        for name in given.models:
            key = f"{setting}, {name}"
            if key in found or time.monotonic() > end:
                continue
            left = max(60.0, end - time.monotonic())
            where = SETTINGS[setting]
            asked = [name, str(given.plans), str(steps), str(where["hosts"])]
            found[key] = run_ranks(__file__, asked, 2, **where, seconds=left)
            print(f"{key}: {machine_line(found[key]['machine'])}", flush=True)
            if given.json:
                save_text(given.json, json.dumps(found, indent=1) + "\n")
    show(found)
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
