"""How long `osdp.search` takes for a given description, and the gap that its certificate states.

    python benchmarks/search_times.py [--json results/search-times.json] [--only 48x1536]

GPTs of planner.py on eight RTX TITAN at 8 to 24 GiB; Llama-3 of 2,048 tokens (transformers, on the meta device) on 16, 64
and 512 H100 at 40 and 70 GiB, recomputation on auto, in fp32 and in bf16 over fp32 parameters. Each search runs three times
(Llama once); the least time of the processor counts, that of making descriptions does not. A limit that is infeasible takes
the time of its error, which names the smallest limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from planner import transformer
from support.machine import machine

import osdp

GPTS = {
    "48x1536": (48, 1536),
    "96x1024": (96, 1024),
    "4x6144": (4, 6144),
    "3x12288": (3, 12288),
    "7x1000": (7, 1000),
}
LLAMAS = {"Llama-3-8B": (4096, 14336, 32, 32), "Llama-3-70B": (8192, 28672, 80, 64)}
H100S = ((16, 2, 70), (64, 8, 70), (512, 64, 70), (512, 64, 40))  # ranks, hosts, GiB


def llama(name: str, precision: str) -> osdp.ModelDescription:
    width, inner, layers, heads = LLAMAS[name]
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=2048,
        use_cache=False,
    )
    with torch.device("meta"):
        model, tokens = transformers.LlamaForCausalLM(config), torch.zeros(1, 2048, dtype=torch.long)
    return osdp.describe(model, tokens, precision=precision)


def searches(only: str) -> Iterator[tuple[str, int, Callable[[], osdp.Plan]]]:
    """Name, number of runs, and the search."""
    for name, (layers, width) in GPTS.items():
        description = transformer([width] * layers)
        for gib in (8, 12, 16, 24):
            row = f"{name}, 8 RTX TITAN, {gib} GiB"
            if only in row:
                yield (
                    row,
                    3,
                    lambda d=description, g=gib: osdp.search(
                        d, memory=f"{g}GiB", world_size=8, hardware="rtx-titan-8"
                    ),
                )
    for name in LLAMAS:
        for precision in ("fp32", "bf16"):
            rows = [(f"{name}, {precision}, {r} H100, {g} GiB", r, h, g) for r, h, g in H100S]
            if not any(only in row for row, *_ in rows):
                continue
            description = llama(name, precision)
            for row, ranks, hosts, gib in rows:
                if only in row:
                    yield (
                        row,
                        1,
                        lambda d=description, r=ranks, h=hosts, g=gib, p=precision: osdp.search(
                            d, memory=f"{g}GiB", world_size=r, hosts=h, hardware="h100-2x8", precision=p
                        ),
                    )


def timed(name: str, runs: int, search: Callable[[], osdp.Plan]) -> dict[str, Any]:
    row: dict[str, Any] = {"search": name, "gap": None, "samples_per_s": None}
    seconds = []
    for _ in range(runs):
        began = time.process_time()
        try:
            plan = search()
        except osdp.InfeasibleError as error:
            row["least_gib"] = round(error.smallest_limit / 2**30, 2)
        else:
            assert plan.certificate is not None and plan.predicted is not None
            row |= {"gap": plan.certificate.gap, "samples_per_s": plan.predicted.throughput}
        seconds.append(time.process_time() - began)
    return {**row, "seconds": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="part of a row's name")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, runs, search in searches(given.only):
        rows.append(timed(name, runs, search))
        print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
