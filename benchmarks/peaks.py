"""Whether steps hold what their plans say: peaks of twelve families of models under searched plans, beside their limits.

    pip install transformers;  python benchmarks/peaks.py --json results/peaks.json [--families Llama ...] [--plans 5]

Each family is searched at limits from the least under which there is a plan to what the fastest needs, in fp32,
in bf16 and with three micro-batches, and trained on 2 ranks. "measured" is of the live heap (heap_peak.c), over what
the process held before the model; "reported" is the measured peak of osdp.report. What libraries keep for good is not
counted as the model's: each plan is trained once before it is measured, and oneDNN keeps no more kernels than were
there by then (KEPT). Nothing is timed, so other work on the machine does not matter. What --json holds is not
measured again, and a family that fails is reported and left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.launch import as_rank, largest, run_ranks

MANNERS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "three micro-batches": {"micro_batches": 3},
}
STEPS = 3
WAITING_STEPS = 6
WAITS, WAIT_S = 0.15, 0.02  # of all outputs and gradients of modules, and how long
# oneDNN keeps up to 1024 kernels, and as many of their descriptions, of 0.26 MB each in bf16. 128 are enough for all shapes
# of a step without experts. Experts meet new shapes in every step, so with them what is kept has another size in each (by 1
# MB, more than the hundredth of the limit that is left to libraries): one is kept. With 8 the least plan of Qwen2-MoE in
# bf16 held 0.7% more than its limit, with one 0.2% less.
KEPT, KEPT_OF_EXPERTS = (
    {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": kernels, "LRU_CACHE_CAPACITY": kernels} for kernels in ("128", "1")
)
EXPERTS = ("Mixtral", "Qwen2-MoE")


def measure(name: str, plans_a_case: str, *manners: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of each manner. A manner for which no plan is found is left out; rank 0 says why."""
    import torch
    import torch.distributed as dist
    from support.families import FAMILIES
    from support.heap import Heap

    import osdp

    subject = FAMILIES[name]
    generator = torch.Generator().manual_seed(dist.get_rank())
    sample = subject.batch(generator)
    # Searched by rank 0, since a search may be ended by its time limit.
    chosen: list[dict[str, list[osdp.Plan]]] = [{}]
    if dist.get_rank() == 0:
        chosen = [
            searched(name, subject.make(), sample, int(plans_a_case), manners, on_cpus(dist.get_world_size()))
        ]
    dist.broadcast_object_list(chosen, 0)
    heap = Heap()

    def taken(plan: osdp.Plan) -> dict[str, int]:
        for _ in range(3):  # the last model's parameters go after several collections: there are finalisers
            before = heap.live()
        model = osdp.fully_shard(subject.make(), plan)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        peak, waits = 0, Waits(model)
        for step in range(STEPS + WAITING_STEPS):
            waits.now = step >= STEPS and step % dist.get_world_size() == dist.get_rank()
            heap.restart()
            for _ in range(plan.accumulation):
                model(*subject.batch(generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step > 0:  # the optimizer has its state, and the order of units is known
                peak = max(peak, heap.peak() - before)
        reported = osdp.report(model, machine=False).measured_peak_memory_bytes or 0
        measured, told = largest(peak, reported)
        return {"measured_bytes": int(measured), "reported_bytes": int(told)}

    found: dict[str, list[dict[str, Any]]] = {}
    for manner, plans in chosen[0].items():
        found[manner] = []
        for plan in plans:
            taken(plan)  # what libraries keep for good is kept now
            assert plan.predicted is not None and plan.hardware is not None
            row = {
                "limit_bytes": plan.memory_limit_bytes,
                "predicted_bytes": plan.predicted.peak_memory_bytes,
            }
            found[manner].append(row | taken(plan))
            if dist.get_rank() == 0:
                print(name, manner, found[manner][-1], flush=True)
    return found


class Waits:
    """Where `now`, the model's computation waits now and then."""

    def __init__(self, model: Any) -> None:
        self.now, self.dice = False, random.Random(0)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(self._after)

    def _after(self, module: object, arguments: object, output: Any) -> None:
        self._wait()
        if getattr(output, "requires_grad", False):
            output.register_hook(self._wait)

    def _wait(self, gradient: object = None) -> None:
        if self.now and self.dice.random() < WAITS:
            time.sleep(WAIT_S)


def on_cpus(ranks: int) -> Any:
    import osdp

    return replace(osdp.Hardware.load("rtx-titan-8"), world_size=ranks, device="cpu")


def searched(
    name: str, bare: Any, sample: Any, count: int, manners: Sequence[str], hardware: Any
) -> dict[str, list[Any]]:
    """Per manner `count` plans, from the least limit under which there is one to what the fastest needs."""
    from support.limits import least_and_most

    import osdp

    size, ranks = sample[0].shape[0], hardware.world_size
    described = osdp.describe(bare, *sample, device=hardware.device)
    plans = {}
    for manner in manners:
        options = dict(MANNERS[manner])
        arguments: dict[str, Any] = {
            "hardware": hardware,
            "world_size": ranks,
            "global_batch_size": size * ranks * options.pop("micro_batches", 1),
            "batch_size": size,
            # Any plan of the search's will do, and one is found on a busy machine too: with 3 s there was none at GPT-2's
            # least limit.
            "gap": 0.05,
            "time_limit": 60,
            **options,
        }
        try:
            described_so = described
            if "precision" in options:
                described_so = osdp.describe(
                    bare, *sample, precision=options["precision"], device=hardware.device
                )
            least, most = least_and_most(described_so, **arguments)
            limits = [least + (most - least) * i // (count - 1) for i in range(count)]
            plans[manner] = [osdp.search(described_so, memory=limit, **arguments) for limit in limits]
        except Exception as error:  # the other manners are still of use
            print(f"{name}, {manner}: not searched: {type(error).__name__}: {error}", flush=True)
    return plans


def show(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """One line per family and manner, over its plans."""
    print(
        "| family | manner | within their limits | predicted off, mean | worst | predicted off of reported, mean | "
        "largest measured / limit | largest reported / limit |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for family, manners in found.items():
        for manner, rows in manners.items():
            off = [r["predicted_bytes"] / r["measured_bytes"] - 1 for r in rows]
            own = [r["predicted_bytes"] / r["reported_bytes"] - 1 for r in rows]
            held = [r["measured_bytes"] / r["limit_bytes"] for r in rows]
            cells = [
                family,
                manner,
                f"{sum(h <= 1 for h in held)} of {len(held)}",
                f"{statistics.mean(map(abs, off)):.1%}",
                f"{max(off, key=abs):+.1%}",
                f"{statistics.mean(map(abs, own)):.1%}",
                f"{max(held):.3f}",
                f"{max(r['reported_bytes'] / r['limit_bytes'] for r in rows):.3f}",
            ]
            print("| " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    from support.families import FAMILIES

    from osdp.base.json_files import save_text

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--manners", nargs="+", choices=MANNERS, default=list(MANNERS))
    parser.add_argument("--plans", type=int, default=5, help="limits a case, at least 2")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}

    # One manner at a time, so that what has been measured is kept where a later one fails or is out of time.
    for family, manner in itertools.product(given.families, given.manners):
        if manner in found.get(family, {}):
            continue
        arguments = [family, str(given.plans), manner]
        try:
            kept = KEPT_OF_EXPERTS if family in EXPERTS else KEPT
            rows = run_ranks(__file__, arguments, 2, seconds=1800, environment=kept)
        except RuntimeError as error:
            print(f"{family}, {manner}: {error}", flush=True)
            continue
        found.setdefault(family, {}).update(rows)
        if given.json:
            save_text(given.json, json.dumps(found, indent=1) + "\n")
        show({family: rows})
    show(found)
    return 0


if __name__ == "__main__":
    if not as_rank(measure, patience=900):  # rank 0 searches, perhaps beside other work
        sys.exit(main())
