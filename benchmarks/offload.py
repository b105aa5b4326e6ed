"""What it gains that a plan may offload some operators: each search without, with, and with everything offloaded.

    python benchmarks/offload.py [--workers 2]

GPTs of 512 or 1,024 tokens and a vocabulary of 50,257 on machines with little memory, whose figures are assumed
(osdp/hardware/machines); the batch is free, or a global batch of 64 samples. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from support.paper.models import GPT, Text

import osdp
from osdp.description.model_description import ModelDescription

# machine, precision, tokens, (layers, width), limits
CASES = (
    ("rtx-titan-8", "fp32", 512, ((48, 1536), (32, 2560), (32, 4096)), ("8GiB", "16GiB", "24GiB")),
    ("rtx-4090-8", "bf16-reduce-fp32", 1024, ((32, 2560), (32, 4096)), ("16GiB", "22GiB")),
)
MODES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD")
OFFLOAD = "FULL_SHARD_OFFLOAD"
SPACES = {"none": MODES, "some": (*MODES, OFFLOAD), "everything": (OFFLOAD,)}


def describe(layers: int, width: int, tokens: int, precision: str) -> ModelDescription:
    with torch.device("meta"):
        model = GPT((width,) * layers, Text("offload", 50257, tokens, 1))
        words = torch.zeros(1, 1, tokens, dtype=torch.long)
    return osdp.describe(model, words, words, precision=precision)


def searched(description: ModelDescription, modes: tuple[str, ...], **asked: object) -> str:
    try:
        plan = osdp.search(description, modes=modes, **asked)  # type: ignore[arg-type]
    except osdp.InfeasibleError:
        return "-"
    assert plan.predicted is not None and plan.certificate is not None
    size = {o.name: o.parameter_bytes for o in description.operators}
    on_host = sum(size[name] for name, choice in plan.choices.items() if choice.traits.on_host)
    part = f", {on_host / sum(size.values()):.0%} offloaded" if on_host else ""
    return f"{plan.predicted.throughput:.2f} (batch {plan.batch_size}{part}, gap {plan.certificate.gap:.1%})"


def row(
    machine: str, precision: str, tokens: int, layers: int, width: int, batch: int | None, limit: str
) -> str:
    description = describe(layers, width, tokens, precision)
    asked = {"memory": limit, "hardware": machine, "world_size": 8, "precision": precision}
    found = [searched(description, modes, global_batch_size=batch, **asked) for modes in SPACES.values()]
    return f"| {machine} | {layers} x {width:,} | {batch or 'free'} | {limit} | {' | '.join(found)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    print(
        "| machine | model | global batch | limit |", " | ".join(f"{name}, samples/s" for name in SPACES), "|"
    )
    print("|---" * (4 + len(SPACES)) + "|")
    cases = [
        (machine, precision, tokens, *shape, batch, limit)
        for machine, precision, tokens, shapes, limits in CASES
        for shape in shapes
        for batch in (None, 64)
        for limit in limits
    ]
    with ProcessPoolExecutor(parser.parse_args().workers) as pool:
        for line in pool.map(row, *zip(*cases, strict=True)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
