"""A training step under tensor parallelism x data parallelism: OSDP beside FSDP2 over the same parallelize_module.

    python benchmarks/tensor_parallel.py [--json FILE] [--rounds N] [--hosts 2 --rate 1gbit]

Four ranks, 2 x 2: tensor parallelism (with sequence parallelism) over the ranks of a host, data parallelism between
hosts. Every kind steps in turn, on the same batch; a step is forward, backward, clipping and AdamW. A figure is the
median over rounds of rank 0's elapsed time, `ratio` that over FSDP2's in the same round. `processor ms` is
the time that all threads of rank 0 have computed.
--hosts: network namespaces, each behind a link of --rate (needs root and iproute2).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from support.launch import as_rank, run_ranks
from support.machine import machine, machine_line

GOAL_BETWEEN_HOSTS = 0.6  # of FSDP2's step


def measure(rounds: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from support.parallel_gpt import batch, parallel_gpt
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard as torchs_fully_shard

    import osdp

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    inputs = batch(torch.Generator().manual_seed(mesh["dp"].get_local_rank()))

    def fsdp2(reshard: bool) -> torch.nn.Module:
        model = parallel_gpt(mesh["tp"])
        for block in model.blocks:
            torchs_fully_shard(block, mesh=mesh["dp"], reshard_after_forward=reshard)
        return torchs_fully_shard(model, mesh=mesh["dp"], reshard_after_forward=reshard)

    def ours(mode: str) -> torch.nn.Module:
        model = parallel_gpt(mesh["tp"])
        plan = osdp.Plan.uniform(osdp.describe(model, *inputs), mode)
        return osdp.fully_shard(model, plan, device_mesh=mesh["dp"])

    def blocks() -> torch.nn.Module:
        model = parallel_gpt(mesh["tp"])
        for block in model.blocks:
            osdp.fully_shard(block, mesh=mesh["dp"])
        return osdp.fully_shard(model, mesh=mesh["dp"])

    kinds: dict[str, Callable[[], torch.nn.Module]] = {
        "FSDP2": lambda: fsdp2(True),
        "FSDP2, kept after forward": lambda: fsdp2(False),
        "OSDP in FSDP2's manner": blocks,
        "OSDP FULL_SHARD": lambda: ours("FULL_SHARD"),
        "OSDP SHARD_GRAD_OP": lambda: ours("SHARD_GRAD_OP"),
        "OSDP NO_SHARD": lambda: ours("NO_SHARD"),
    }
    models = {name: build() for name, build in kinds.items()}
    optimizers = {name: torch.optim.AdamW(m.parameters(), lr=1e-4) for name, m in models.items()}
    losses: dict[str, float] = {}

    def step(name: str) -> tuple[float, float]:
        dist.barrier()
        begin, worked = time.perf_counter(), time.process_time()
        loss = models[name](*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(models[name].parameters(), 1.0)
        optimizers[name].step()
        optimizers[name].zero_grad()
        losses[name] = float(loss.detach())
        return 1e3 * (time.perf_counter() - begin), 1e3 * (time.process_time() - worked)

    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for turn in range(3 + int(rounds)):
        for name in list(kinds)[:: 1 if turn % 2 else -1]:
            found = step(name)
            if turn >= 3:
                rows[name].append(found)
    wanted = losses["FSDP2"]
    assert all(abs(loss - wanted) < 1e-3 * abs(wanted) for loss in losses.values()), losses
    return {
        name: {
            "step_ms": median(t for t, _ in found),
            "processor_ms": median(p for _, p in found),
            "ratio": median(t / whole for (t, _), (whole, _) in zip(found, rows["FSDP2"], strict=True)),
        }
        for name, found in rows.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    arguments = parser.parse_args()
    here = machine()
    found = run_ranks(
        __file__, [str(arguments.rounds)], 4, hosts=arguments.hosts, rate=arguments.rate, seconds=1500
    )
    where = "one host" if arguments.hosts == 1 else f"{arguments.hosts} hosts, {arguments.rate}"
    print(f"tensor 2 x data 2, {where}: {'step ms':>31} {'of FSDP2':>9} {'processor ms':>13}")
    for name, row in found.items():
        print(f"{name:60} {row['step_ms']:7.0f} {row['ratio']:9.2f} {row['processor_ms']:13.0f}")
    print(machine_line(here))
    if arguments.json:
        result = {"machine": here, "rounds": arguments.rounds, "hosts": arguments.hosts, "kinds": found}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    full = found["OSDP FULL_SHARD"]["ratio"]
    if arguments.hosts > 1:
        print(f"FULL_SHARD over FSDP2: {full:.2f}, goal {GOAL_BETWEEN_HOSTS}")
        return int(full > GOAL_BETWEEN_HOSTS)
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
