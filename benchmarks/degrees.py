"""What degrees are worth: the planner's columns DP, FSDP, OSDP, TP, PP, 3D and 3D+OSDP for the paper's models; search times.

    python benchmarks/degrees.py [--json results/degrees.json] [--only "W&S"] [--large]

The models and machine of planner.py (N&D, W&S, I&C; 8 and 16 ranks of 8 and 16 GB), 64 samples a step, degrees on auto.
Every column but the last has the best micro-batch, recomputation of all blocks or none, and cuts of its own:
osdp.planning.degrees.alternatives. Checked: 3D+OSDP is never slower than 3D, nor 3D than DP, TP and PP. --large times the
search for Llama-3-70B on 64 and 512 H100 and GPT-3 175B on 1,024 instead, whose descriptions are made first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from planner import families
from support import gpt_3d
from support.degrees_on_h100 import degrees_of, searched
from support.machine import machine

import osdp

STYLES = {
    "h.*.attn.qkv": "colwise",
    "h.*.attn.proj": "rowwise",
    "h.*.mlp.fc": "colwise",
    "h.*.mlp.proj": "rowwise",
}
COLUMNS = ("DP", "FSDP", "OSDP", "TP", "PP", "3D")
SAMPLES = 64  # a step


def row_of(name: str, description: osdp.ModelDescription, ranks: int, gigabytes: int) -> dict[str, Any]:
    """Samples per second by column; None where nothing fits."""
    began = time.perf_counter()
    row: dict[str, Any] = {"instance": f"{name} {ranks} ranks {gigabytes} GB"}
    try:
        plan = osdp.search(
            description,
            memory=gigabytes * 10**9,
            world_size=ranks,
            hosts=ranks // 8,
            hardware="rtx-titan-8",
            global_batch_size=SAMPLES,
            tensor_parallel="auto",
            pipeline_parallel="auto",
            tp_plan=STYLES,
        )
    except osdp.InfeasibleError as error:
        return {**row, "infeasible": str(error)}
    assert isinstance(plan, osdp.ParallelPlan)
    steps = {a.name: a.step_time_s for a in plan.alternatives}
    parts = [s for s in (steps["DP"], steps["TP"], steps["PP"]) if s is not None]
    if steps["3D"] is not None:
        assert plan.step_time_s <= steps["3D"], row
        assert all(steps["3D"] <= s for s in parts), row
    else:
        assert not parts, row
    rates = {c: None if (s := steps[c]) is None else SAMPLES / s for c in COLUMNS}
    degrees = f"{plan.tensor_parallel} x {plan.pipeline_parallel} x {plan.data_parallel}"
    seconds = time.perf_counter() - began
    return {**row, **rates, "3D+OSDP": plan.throughput, "degrees": degrees, "search_s": seconds}


def large() -> list[dict[str, Any]]:
    llama = gpt_3d.make(80, 8192, 64, 128256, 8192, llama=True)
    gpt = gpt_3d.make(96, 12288, 96, 51200, 2048, llama=False)
    rows = []
    for name, (model, sample), styles, ranks, batch in (
        ("Llama-3-70B", llama, gpt_3d.LLAMA, 64, 512),
        ("Llama-3-70B", llama, gpt_3d.LLAMA, 512, 1024),
        ("GPT-3 175B", gpt, gpt_3d.MEGATRON, 1024, 1536),
    ):
        description = osdp.describe(model, *sample, precision="bf16")
        plan, seconds = searched(description, ranks, batch, styles, memory="80GB")
        steps = {a.name: a.step_time_s for a in plan.alternatives}
        rows.append(
            {
                "model": name,
                "ranks": ranks,
                "degrees": degrees_of(plan),
                "step_s": plan.step_time_s,
                "search_s": seconds,
                **steps,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="part of an instance's name")
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # descriptions by hand have no kernels
    rows = large() if given.large else []
    for name, description in {} if given.large else families().items():
        for ranks in (8, 16):
            for gigabytes in (8, 16):
                if given.only not in f"{name} {ranks} ranks {gigabytes} GB":
                    continue
                rows.append(row_of(name, description, ranks, gigabytes))
                print(json.dumps(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
