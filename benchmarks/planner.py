"""Everything that the planner decides, on the paper's model families: time and gap of `osdp.search`.

    python benchmarks/planner.py [--json figures.json] [--rounds 3] [--time-limit 2] [--everywhere]

N&D: 48-96 layers x 1024-1536; W&S: 2-4 x 6144-12288; I&C: 24-96 layers of mixed widths 1024-4096. 8 and 16
ranks, 8 and 16 GB, all batch sizes. The time is the search in C++ on one thread, the best of the rounds; a search that
reaches its time limit counts with it, and its gap is what it could not prove. --everywhere takes the same models at
4 to 32 ranks and 13 other limits, which nobody tuned for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from osdp import _search
from osdp.description.model_description import Block, ModelDescription
from osdp.hardware.hardware import Hardware
from tests.unit.gpt_descriptions import embedding, linear, operator
from tests.unit.problems import problem_of

TOKENS = 512
VOCABULARY = 50257


def transformer(widths: list[int], tokens: int = TOKENS, vocabulary: int = VOCABULARY) -> ModelDescription:
    """A GPT of one block per width; neighbours of different widths are joined by a linear layer."""
    first, last = widths[0], widths[-1]
    operators = [
        embedding("wte", vocabulary, first, saved=8 * tokens),
        embedding("wpe", tokens, first),
    ]
    blocks = []
    for i, h in enumerate(widths):
        if i and widths[i - 1] != h:
            operators.append(linear(f"join.{i}", h, widths[i - 1], tokens))
        b = f"h.{i}"
        row = 4 * tokens * h
        blocks.append(Block(b, row))
        norm: dict[str, tuple[int, ...]] = {"weight": (h,), "bias": (h,)}
        operators += [
            operator(f"{b}.ln_1", "LayerNorm", norm, saved=row, block=b),
            linear(f"{b}.attn.qkv", 3 * h, h, tokens, b),
            operator(f"{b}.attn", "Attention", {}, saved=4 * row, flops=4 * tokens**2 * h, block=b),
            linear(f"{b}.attn.proj", h, h, tokens, b),
            operator(f"{b}.ln_2", "LayerNorm", norm, saved=row, block=b),
            linear(f"{b}.mlp.fc", 4 * h, h, tokens, b),
            operator(f"{b}.mlp.act", "GELU", {}, saved=4 * row, block=b),
            linear(f"{b}.mlp.proj", h, 4 * h, tokens, b),
        ]
    operators += [
        operator("ln_f", "LayerNorm", {"weight": (last,), "bias": (last,)}, saved=4 * tokens * last),
        linear("head", vocabulary, last, tokens),
    ]
    return ModelDescription("GPT", tuple(operators), tuple(blocks), 1, 8 * tokens)


def families() -> dict[str, ModelDescription]:
    found = {}
    for layers in (48, 72, 96):
        for width in (1024, 1280, 1536):
            found[f"N&D {layers}x{width}"] = transformer([width] * layers)
    for layers in (2, 3, 4):
        for width in (6144, 8192, 12288):
            found[f"W&S {layers}x{width}"] = transformer([width] * layers)
    for layers in (24, 48, 96):
        for mix in ((1024, 2048), (1024, 4096), (1024, 2048, 4096)):
            part = layers // len(mix)
            found[f"I&C {layers}x{'/'.join(map(str, mix))}"] = transformer(
                [h for h in mix for _ in range(part)]
            )
    return found


LIMITS = (5.5, 7, 9, 10.3, 11, 12, 13.1, 14, 15, 18, 20.7, 24, 32)


def instances(only: str, everywhere: bool) -> Iterator[tuple[str, ModelDescription, int, float]]:
    """Name, model, ranks and gigabytes."""
    for name, description in families().items():
        for ranks in (4, 8, 16, 32) if everywhere else (8, 16):
            for gigabytes in LIMITS if everywhere else (8, 16):
                instance = f"{name} {ranks} ranks {gigabytes} GB"
                if only in instance:
                    yield instance, description, ranks, gigabytes


def measure(rounds: int, only: str, everywhere: bool, time_limit_s: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    hardware = Hardware.load("rtx-titan-8")
    for instance, description, ranks, gigabytes in instances(only, everywhere):
        planner = problem_of(description, hardware, ranks).planner
        model, request = planner.model, planner.request(limit_bytes=round(gigabytes * 1e9))
        runs = [_search.schedule(model, request, time_limit_s)]
        while len(runs) < rounds and runs[0].seconds < time_limit_s / 2:
            runs.append(_search.schedule(model, request, time_limit_s))
        found = runs[0]
        row: dict[str, object] = {
            "instance": instance,
            "family": instance[:3],
            "feasible": found.feasible,
            "ms": 1e3 * min(r.seconds for r in runs),
            "regions": found.regions,
            "leaves": found.leaves,
            "rows": found.rows,
        }
        if found.feasible:
            samples = found.batch.samples()
            bound = found.lower_bound_s_per_sample * samples * 1e12
            row |= {
                "proven": found.optimal,
                "gap": 0.0 if found.optimal else max(0.0, 1 - bound / found.step_ps),
                "batch": found.batch.size,
                "recomputed": sum(way != "none" for way in found.blocks),
            }
        rows.append(row)
        print(
            *(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
            sep=", ",
            flush=True,
        )
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """One line per family and one for all."""
    lines = [
        "| family | instances | feasible | proven | largest gap | median ms | max ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in (*dict.fromkeys(str(r["family"]) for r in rows), "all"):
        own = [r for r in rows if family in ("all", r["family"])]
        solved = [r for r in own if r["feasible"]]
        times = [float(str(r["ms"])) for r in own]
        gap = max((float(str(r["gap"])) for r in solved), default=0.0)
        lines.append(
            f"| {family} | {len(own)} | {len(solved)} | {sum(bool(r['proven']) for r in solved)} | {gap:.2g} "
            f"| {statistics.median(times):.2f} | {max(times):.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of an instance's name")
    parser.add_argument("--everywhere", action="store_true", help="4 to 32 ranks and 13 other limits")
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds, of one search")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.only, arguments.everywhere, arguments.time_limit)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
