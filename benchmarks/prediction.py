"""How true the predicted step time is: profiled, predicted and measured in turns, the bare model beside.

    python benchmarks/prediction.py [--plans modes|ahead|hosts] [--rounds 5] [--steps 10] [--ranks 2]
        [--hosts 2 --rate 1gbit] [--json FILE]

The GPT of benchmarks/step.py under single modes and a searched mixture; under those that shard over several hosts; or with
everything sharded and recomputed, and units gathered 1 to 8 ahead (`prefetch`) or as the search decides. In every round the
machine is profiled anew, each plan's step is played on that profile, and the plans and the bare model (every rank by
itself, without communication) take their steps in turn. Printed are medians over rounds of the error, and of the error
where both sides are divided by the bare model's step: predicted by its profile, measured in the same turn. The second is
less disturbed by other work on the machine, which changes from minute to minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from support.launch import as_rank, run_ranks

BARE = "bare model"


def measure(which: str, rounds: str, steps: str, hosts: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.gpt import batch, make_gpt

    import osdp

    generator = torch.Generator().manual_seed(dist.get_rank())
    sample = batch(generator)
    bare = make_gpt()[0]
    description = osdp.describe(bare, *sample)
    hardware = osdp.profile(bare, *sample, seconds=6)
    plans = {"ahead": ahead, "hosts": by_hosts}.get(which, modes)(description, hardware, sample[0].shape[0])
    models = {BARE: bare, **{n: osdp.fully_shard(make_gpt()[0], p) for n, p in plans.items()}}
    optimizers = {
        n: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True) for n, m in models.items() if n != BARE
    }

    def step_s(name: str) -> float:
        dist.barrier()
        begin = time.perf_counter()
        models[name](*batch(generator)).backward()
        if name in optimizers:
            optimizers[name].step()
        models[name].zero_grad(set_to_none=True)
        return time.perf_counter() - begin

    for name in models:
        step_s(name), step_s(name)
    rows = []
    for _ in range(int(rounds)):
        hardware = osdp.profile(bare, *sample, seconds=6)
        compute = hardware.bare_step_s(sample[0].shape[0])
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(int(steps)):
            for name in models:
                times[name].append(step_s(name))
        row = {BARE: {"predicted_s": compute, "measured_s": median(times[BARE])}}
        for name, plan in plans.items():
            played = plan.simulate(hardware, dist.get_world_size(), hosts=int(hosts))
            row[name] = {
                "predicted_s": played.step_time_s,
                "measured_s": median(times[name]),
                "communication_s": played.communication_s,
                "overlap_s": played.overlap_s,
            }
        rows.append(row)
    return {"rounds": rows, "hardware": json.loads(hardware.dumps())}


def modes(description: Any, hardware: Any, batch_size: int) -> dict[str, Any]:
    import osdp

    plans = {m: osdp.Plan.uniform(description, m) for m in ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")}
    plans = {name: replace(plan, batch_size=batch_size) for name, plan in plans.items()}
    return plans | {"searched": searched(description, hardware, batch_size)}


def by_hosts(description: Any, hardware: Any, batch_size: int) -> dict[str, Any]:
    import osdp

    modes = ("FULL_SHARD", "FULL_SHARD_HIERARCHICAL", "FULL_SHARD_HPZ", "HYBRID_SHARD")
    plans = {mode: osdp.Plan.uniform(description, mode) for mode in modes}
    return {name: replace(plan, batch_size=batch_size) for name, plan in plans.items()}


def ahead(description: Any, hardware: Any, batch_size: int) -> dict[str, Any]:
    """With memory that is no limit."""
    import osdp

    space = dict(modes="FULL_SHARD", granularity=1, checkpoint=True, batch_size=batch_size)
    given = dict(hardware=hardware, memory="1TiB")
    found = {n: osdp.search(description, prefetch=n, **space, **given) for n in (1, 2, 4, 8, "auto")}
    return {f"{n} ahead": plan for n, plan in found.items()}


def searched(description: Any, hardware: Any, batch_size: int) -> Any:
    """The plan half-way between the least and the most memory."""
    from support.limits import least_and_most

    import osdp

    arguments = dict(hardware=hardware, batch_size=batch_size, checkpoint=False)
    least, most = least_and_most(description, **arguments)
    return osdp.search(description, memory=(least + most) // 2, **arguments)


def errors(rows: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Medians over rounds: predicted over measured, less 1; and the same of both relative to the bare model."""
    plain, relative = [], []
    for row in rows:
        error = row[name]["predicted_s"] / row[name]["measured_s"]
        plain.append(error - 1)
        relative.append(error / (row[BARE]["predicted_s"] / row[BARE]["measured_s"]) - 1)
    return median(plain), median(relative)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--plans", choices=("modes", "ahead", "hosts"), default="modes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = run_ranks(
        __file__,
        [given.plans, str(given.rounds), str(given.steps), str(given.hosts)],
        given.ranks,
        hosts=given.hosts,
        rate=given.rate,
        seconds=given.seconds,
    )
    rows = found["rounds"]
    print(f"{'':16}{'predicted':>12}{'measured':>12}{'error':>9}{'to bare':>9}{'lane':>12}{'beside':>12}")
    for name in rows[0]:
        middle = {key: median(row[name][key] for row in rows) * 1e3 for key in rows[0][name]}
        plain, relative = errors(rows, name)
        lane = "".join(
            f"{middle[key]:9.1f} ms" if key in middle else "" for key in ("communication_s", "overlap_s")
        )
        print(
            f"{name:16}{middle['predicted_s']:9.1f} ms{middle['measured_s']:9.1f} ms{plain:+9.1%}{relative:+9.1%}{lane}"
        )
    if given.json:
        given.json.write_text(json.dumps({"arguments": sys.argv[1:], **found}, indent=1))
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
