"""Predictions for 64 to 4,096 ranks; and published steps beside predictions of the same plans."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import published_3d

import osdp
from osdp.description.model_description import ModelDescription
from support import gpt_3d
from support.degrees_on_h100 import degrees_of, searched

RANKS = (64, 512, 4096)
TOKENS = 2**22  # a step of up to 512 ranks; eight times that on 4,096, so that each rank has a sequence
# layers, width, heads, vocabulary, sequence, Llama
MODELS: dict[str, tuple[int, int, int, int, int, bool]] = {
    "Llama-3 8B": (32, 4096, 32, 128256, 8192, True),
    "Llama-3 70B": (80, 8192, 64, 128256, 8192, True),
    "OPT-30B": (48, 7168, 56, 50272, 2048, False),
}


def at_scale() -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    found = []
    for name, shape in MODELS.items():
        model, sample = gpt_3d.make(*shape)
        description = osdp.describe(model, *sample, precision="bf16")
        for ranks in RANKS:
            batch = max(1, TOKENS * max(1, ranks // 512) // shape[4])
            styles = gpt_3d.LLAMA if shape[5] else gpt_3d.MEGATRON
            found.append(
                {"model": name, "ranks": ranks, **_searched(description, ranks, batch, shape[4], styles)}
            )
            print(found[-1], file=sys.stderr, flush=True)
    return found


def _searched(
    description: ModelDescription, ranks: int, batch: int, tokens: int, styles: dict[str, str]
) -> dict[str, Any]:
    plan, seconds = searched(description, ranks, batch, styles)
    steps = {a.name: a.step_time_s for a in plan.alternatives} | {"3D+OSDP": plan.step_time_s}
    return {
        "tokens": batch * tokens,
        "degrees": degrees_of(plan),
        "micro_batch": plan.micro_batch_size,
        "search_cpu_s": seconds,
        "tokens_per_s_per_rank": {
            c: batch * tokens / ranks / s if s is not None else None for c, s in steps.items()
        },
    }


def published() -> list[dict[str, Any]]:
    """published_3d.py's, without its searches."""
    warnings.simplefilter("ignore")
    found = []
    for run in published_3d.runs():
        description = published_3d.described(run, None)
        float8 = "float8" in run["source"]
        step, batch = published_3d.predicted_s(run, description, float8)
        found.append(
            {
                "model": run["model"],
                "gpus": run["gpus"],
                "gpu": run["gpu"],
                "degrees": [run["tp"], run["pp"], run["gpus"] // (run["tp"] * run["pp"])],
                "published_s": published_3d.published_s(run),
                "predicted_s": step,
                "micro_batch": batch,
                "float8": float8,
                "source": run["source"],
            }
        )
    return found
