"""Peaks on a GPU beside the plans': benchmarks/peaks.py's twelve families, of which two ranks share one GPU over gloo.

    python benchmarks/gpu_peaks.py --search PLANS [--families Llama ...]     anywhere: describes, and writes the plans
    python benchmarks/gpu_peaks.py --measure PLANS --json FILE               on the GPU: trains them
    python benchmarks/gpu_peaks.py --show FILE

What is compared is what tensors take ("allocated"), to which cuBLAS's workspace belongs, and what the caching allocator
reserves. Plans are made without a GPU, for h100-8 with two ranks. Nothing is timed: families are trained side by side.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from peaks import MANNERS, searched
from support.launch import as_rank, run_ranks

STEPS, RANKS = 4, 2


def search(folder: Path, families: list[str], count: int) -> None:
    import torch
    from support.families import FAMILIES

    import osdp

    folder.mkdir(parents=True, exist_ok=True)
    hardware = replace(osdp.Hardware.load("h100-8"), world_size=RANKS)
    memory = replace(hardware.device_memory, communicator_bytes=0)  # gloo's are on the host
    hardware = replace(hardware, device_memory=memory)
    for name in families:
        subject = FAMILIES[name]
        sample = subject.batch(torch.Generator().manual_seed(0))
        found = searched(name, subject.make(), sample, count, list(MANNERS), hardware)
        for manner, plans in found.items():
            for i, plan in enumerate(plans):
                plan.save(folder / f"{name}, {manner}, {i}.json")
        print(name, {manner: len(plans) for manner, plans in found.items()}, flush=True)


def measure(name: str, folder: str) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist
    from support.families import FAMILIES

    import osdp
    from osdp.hardware.device_statistics import DeviceStatistics

    on_gpu = torch.cuda.is_available()  # else it shows that this runs
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    group = dist.new_group(backend="cpu:gloo,cuda:gloo" if on_gpu else "gloo")
    statistic = DeviceStatistics(device)
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    rows: list[dict[str, Any]] = []

    def taken(plan: osdp.Plan) -> dict[str, Any]:
        subject = FAMILIES[name]
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            gc.collect()
        statistic.empty_cache()
        before = statistic.allocated() or 0
        model = osdp.fully_shard(subject.make().to(device), plan, process_group=group)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        for step in range(STEPS):
            if step == 1:
                wait()
                statistic.reset_peaks()
            for _ in range(plan.accumulation):
                model(*(t.to(device) for t in subject.batch(generator))).backward()
            optimizer.step()
            optimizer.zero_grad()
        wait()
        told = osdp.report(model, machine=False)
        mine = torch.tensor([told.measured_peak_memory_bytes, told.measured_reserved_bytes or 0, before])
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        return {
            "predicted_allocated_bytes": told.predicted_peak_memory_bytes,
            "measured_allocated_bytes": int(mine[0]),
            "predicted_reserved_bytes": told.predicted_reserved_bytes,
            "measured_reserved_bytes": int(mine[1]),
            "before_bytes": int(mine[2]),
            "limit_bytes": plan.memory_limit_bytes,
        }

    for file in sorted(Path(folder).glob(f"{name}, *.json")):
        row: dict[str, Any] = {"plan": file.stem}
        try:
            row |= taken(osdp.Plan.load(file))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
        rows.append(row)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
        if "error" in row:
            break  # the other rank may be elsewhere
    return rows


def run(family: str, folder: Path, file: Path) -> None:
    rows = run_ranks(__file__, [family, str(folder)], RANKS, seconds=150)
    file.write_text(json.dumps(rows, indent=1) + "\n")


def measure_all(folder: Path, file: Path, families: list[str], seconds: float) -> None:
    from support.gpu import head

    begin = time.monotonic()
    parts = {f: file.with_name(f"{file.stem}-{f}.part") for f in families}
    running = {
        f: subprocess.Popen(
            [sys.executable, __file__, "--one", f, "--measure", str(folder), "--json", str(part)]
        )
        for f, part in parts.items()
    }
    for process in running.values():
        try:
            process.wait(max(1.0, seconds - (time.monotonic() - begin)))
        except subprocess.TimeoutExpired:
            process.terminate()
    found = {f: json.loads(part.read_text()) for f, part in parts.items() if part.exists()}
    file.write_text(json.dumps(head() | {"families": found}, indent=1) + "\n")
    for part in parts.values():
        part.unlink(missing_ok=True)


def show(file: Path) -> None:
    from support.gpu import line

    found = json.loads(file.read_text())
    print(line(found) + "\n")
    print(
        "| family | manner | plans | allocated off, mean | worst | largest measured / predicted | reserved off, mean |"
    )
    print("|---|---|---|---|---|---|---|")
    for family, rows in found["families"].items():
        for manner in MANNERS:
            mine = [r for r in rows if f", {manner}, " in r["plan"]]
            right = [r for r in mine if "error" not in r]
            for row in mine:
                if "error" in row:
                    print(f"| {family} | {manner} | {row['error'][:160]} | | | | |")
            if right:
                off = [r["predicted_allocated_bytes"] / r["measured_allocated_bytes"] - 1 for r in right]
                held = [(r["predicted_reserved_bytes"], r["measured_reserved_bytes"]) for r in right]
                own = [said / found - 1 if found else 0.0 for said, found in held]
                cells = [family, manner, str(len(right)), f"{statistics.mean(map(abs, off)):.1%}"]
                cells += [f"{max(off, key=abs):+.1%}", f"{max(1 / (1 + o) for o in off):.3f}"]
                print("| " + " | ".join([*cells, f"{statistics.mean(map(abs, own)):.1%}"]) + " |")


def main() -> int:
    from support.families import FAMILIES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--search", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--one", choices=FAMILIES, help=argparse.SUPPRESS)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--plans", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=160)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.search:
        search(a.search, a.families, a.plans)
    elif a.one:
        run(a.one, a.measure, a.json)
    elif a.measure:
        measure_all(a.measure, a.json, a.families, a.seconds)
    if a.show:
        show(a.show)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not as_rank(measure, patience=100):
        sys.exit(main())
