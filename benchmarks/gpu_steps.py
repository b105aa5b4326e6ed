"""Steps on one GPU beside what was predicted before anybody had it: models of ten families, from a shipped machine file.

    python benchmarks/gpu_steps.py --search PLANS [--machine h100-8]    anywhere: describes, and writes a plan of each
    python benchmarks/gpu_steps.py --measure PLANS --json FILE          on the GPU: trains them
    python benchmarks/gpu_steps.py --show FILE [--predict PLANS]        its predictions anew, from plans made since

bf16 compute over fp32 parameters, AdamW (fused), one rank, which shards and sends nothing: what is predicted are its
kernels, launches and memory. Each model without recomputation and with it. The plans are made without a GPU, on the
meta device. "compiled": every block by torch.compile; its losses are the eager ones' but for rounding. "partly offloaded":
recomputed, within the mean of what it holds with everything offloaded and with nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from support.gpu import head, line

import osdp
from osdp.sharding.report import predicted_allocated_bytes, predicted_reserved_bytes

STEPS, WARM_UP = 8, 3
MANNERS = {"kept": False, "recomputed": True}
OFFLOADED = ("partly offloaded", "offloaded")


def searched(description: Any, batch: int, machine: str) -> dict[str, osdp.Plan]:
    def plan(checkpoint: bool, *modes: str, memory: int | str = "1TiB") -> osdp.Plan:
        return osdp.search(
            description, memory=memory, world_size=1, hardware=machine, precision="bf16", batch_size=batch,
            checkpoint=checkpoint, modes=modes,
        )  # fmt: skip

    found = {manner: plan(checkpoint, "NO_SHARD") for manner, checkpoint in MANNERS.items()}
    found["offloaded"] = plan(True, "FULL_SHARD_OFFLOAD")
    least, most = (found[m].predicted.peak_memory_bytes for m in ("offloaded", "recomputed"))
    limit = int(max(least + most, 2.1 * least) / 2)  # a hundredth of it is left to libraries
    found["partly offloaded"] = plan(True, "NO_SHARD", "FULL_SHARD_OFFLOAD", memory=limit)
    return found


def search(folder: Path, machine: str, names: list[str]) -> None:
    from support.large_families import LARGE

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with torch.device("meta"):
            model = LARGE[name].make()
        sample = LARGE[name].batch(torch.Generator().manual_seed(0))
        begin = time.perf_counter()
        description = osdp.describe(model, *sample, precision="bf16", device="cuda")
        for manner, plan in searched(description, sample[0].shape[0], machine).items():
            plan.save(folder / f"{name} {manner}.json")
            print(
                f"{name}, {manner}: {plan.predicted.step_time_s * 1e3:.1f} ms, "
                f"{plan.predicted.peak_memory_bytes / 2**30:.2f} GiB; {time.perf_counter() - begin:.1f} s",
                flush=True,
            )


def one(name: str, plan: osdp.Plan, compiled: bool = False) -> dict[str, Any]:
    from support.large_families import LARGE

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(3):  # the last model's parameters go after several collections: there are finalisers
        gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    torch.manual_seed(0)
    with device:
        model = LARGE[name].make()
    left = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    model = osdp.fully_shard(model, plan)
    if compiled:
        for module in model.modules():
            if isinstance(module, torch.nn.ModuleList):
                for block in module:
                    block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)
    batches = [
        tuple(t.to(device) for t in LARGE[name].batch(generator)) for _ in range(2)
    ]  # on the device: loading is not the step's
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    def step(i: int) -> torch.Tensor:
        loss = model(*batches[i % 2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step(i) for i in range(WARM_UP)]
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for i in range(STEPS):
        begin = time.perf_counter()
        losses.append(step(i))
        wait()
        seconds.append(time.perf_counter() - begin)
    report = osdp.report(model, machine=False)
    return {
        "predicted": {
            "step_s": report.predicted_step_time_s,
            "allocated_bytes": report.predicted_peak_memory_bytes,
            "reserved_bytes": report.predicted_reserved_bytes,
        },
        "measured": {
            "step_s": statistics.median(seconds),
            "allocated_bytes": report.measured_peak_memory_bytes,
            "reserved_bytes": report.measured_reserved_bytes,
        },
        "not_ours_before_bytes": left - held,
        "losses": [float(loss) for loss in losses],
    }


def measure(
    folder: Path, file: Path, seconds: float, names: list[str], compiled: list[str], offloaded: list[str]
) -> None:
    begin = time.monotonic()
    for key, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }.items():
        os.environ.setdefault(key, value)
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    rows = []
    for name, manner, compile_it in [
        *((name, manner, False) for name in names for manner in MANNERS),
        *((name, manner, False) for name in offloaded for manner in OFFLOADED),
        *((name, "kept", True) for name in compiled),
    ]:
        if time.monotonic() - begin > seconds:
            print(f"{name}, {manner}: no time left", flush=True)
            continue
        row: dict[str, Any] = {"model": name, "manner": "compiled" if compile_it else manner}
        try:
            row |= one(name, osdp.Plan.load(folder / f"{name} {manner}.json"), compile_it)
        except Exception as error:  # the others are still of use
            row["error"] = f"{type(error).__name__}: {error}"[:2000]
        rows.append(row)
        print(f"{time.monotonic() - begin:4.0f} s {json.dumps(row)}", flush=True)
        found = head() | {"rows": rows}
        file.write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


def predict(file: Path, folder: Path) -> None:
    """Puts predictions of plans that were made since beside what was measured."""
    found = json.loads(file.read_text())
    for row in found["rows"]:
        manner = "kept" if row["manner"] == "compiled" else row["manner"]
        plan = osdp.Plan.load(folder / f"{row['model']} {manner}.json")
        assert plan.predicted is not None
        row["predicted"] = {
            "step_s": plan.predicted.step_time_s,
            "allocated_bytes": predicted_allocated_bytes(plan),
            "reserved_bytes": predicted_reserved_bytes(plan),
        }
    file.write_text(json.dumps(found, indent=1) + "\n")


def show(file: Path) -> None:
    found = json.loads(file.read_text())
    print(line(found) + "\n")
    print(
        "| model | blocks | step: predicted, measured | off | allocated: predicted, measured | off | reserved, off |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        if "error" in row:
            print(f"| {row['model']} | {row['manner']} | {row['error'][:80]} | | | | |")
            continue
        p, m = row["predicted"], row["measured"]
        off = {k: p[k] / m[k] - 1 for k in p if p[k] and m[k]}
        cells = [
            *(row["model"], row["manner"], f"{1e3 * p['step_s']:.0f}, {1e3 * m['step_s']:.0f} ms"),
            f"{off['step_s']:+.1%}",
            f"{p['allocated_bytes'] / 2**30:.2f}, {m['allocated_bytes'] / 2**30:.2f} GiB",
            *(f"{off['allocated_bytes']:+.1%}", f"{off.get('reserved_bytes', 0):+.1%}"),
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    from support.large_families import LARGE

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--search", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--machine", default="h100-8")
    parser.add_argument("--models", nargs="+", choices=LARGE, default=list(LARGE))
    parser.add_argument("--compiled", nargs="*", choices=LARGE, default=["Llama 1B"])
    parser.add_argument("--offloaded", nargs="*", choices=LARGE, default=["GPT-2 medium", "Llama 1B"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="no model is begun after them")
    a = parser.parse_args()
    if a.search:
        search(a.search, a.machine, a.models)
    if a.measure:
        measure(a.measure, a.json, a.seconds, a.models, a.compiled, a.offloaded)
    if a.show and a.predict:
        predict(a.show, a.predict)
    if a.show:
        show(a.show)


if __name__ == "__main__":
    sys.exit(main())
