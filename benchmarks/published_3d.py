"""Steps with tensor and pipeline parallelism that others published, beside predictions; and the degrees that a search finds.

    python benchmarks/published_3d.py [--json results/published-3d.json] [--descriptions FOLDER] [--no-search]
    python benchmarks/published_3d.py --stored results/published-3d.json

published_3d.csv has their sources. Known of them, or assumed (?):

Megatron (2021): plain data parallelism, whole blocks recomputed, attention as products and a softmax, fp16 with fp32
master weights and sums, Adam in every rank, gradients averaged after the last backward. Eight A100 80 GB a host, 8 x 200
Gb/s between hosts. The micro-batch is not in the table: the one that is predicted to be fastest is taken (?). A step's
time is from their flops per GPU, 96 B s l h^2 (1 + s / 6h + V / 16lh) (their equation 3, with recomputation). Runs with
pipelines were interleaved: here they are played with 1F1B, whose bubble is larger.
torchtitan (2024): FULL_SHARD over data-parallel ranks, with pipelining SHARD_GRAD_OP (its default); sequence parallelism;
without pipelining one micro-batch. H100 of 500 W with 2.4 TB/s (its documentation): against the shipped H100 of 700 W
and 3.35 TB/s the clock is taken as the cube root of the power (?). The two larger ones compute products in float8, which
is taken as FLOAT8 times bf16's rate (?); the ratio without it is printed too. Selective recomputation is taken as none.
Nothing is fitted to these rows.

Printed are predicted step over published; the mean error; and what `osdp.search` returns for the same GPUs, batch and
memory, with its time: with degrees on auto, and at their degrees. The latter says how much of the difference are degrees:
micro-batches, recomputation, modes and slices are the search's own in both.

Which of the two is true, where these differ? Published too are runs of FSDP without tensor and pipeline parallelism, on the
same kinds of GPU (published_fsdp.csv). The last table compares the model's own work a second and GPU, forward and backward
without what is recomputed: of the published run, of the prediction at the degrees found, and of the FSDP runs of 64 GPUs and
more whose models are nearest in size. --stored prints this table from a file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
import time
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from support import gpt_3d, published_runs
from support.machine import machine

import osdp
from osdp import _search
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.searched import Searched
from osdp.planning.degrees.search_degrees import Search
from osdp.planning.degrees.styles import styles_of
from osdp.planning.search_problem import SearchProblem

TABLE = Path(__file__).parent / "published_3d.csv"
MACHINES = {"a100_80gb": "dgx-a100-2x8", "h100_96gb": "h100-2x8"}
MEMORY = {"a100_80gb": 84_900_000_000, "h100_96gb": 101_000_000_000}
PER_HOST = 8
FLOAT8 = 1.5
PRECISION = "bf16-reduce-fp32"


def runs() -> list[dict[str, Any]]:
    counts = ("layers", "width", "heads", "vocabulary", "sequence", "gpus", "tp", "pp", "batch")
    with TABLE.open() as file:
        return [{**row, **{name: int(row[name]) for name in counts}} for row in csv.DictReader(file)]


def published_s(run: dict[str, Any]) -> float:
    """Seconds of a step."""
    b, s, layers, h, v = (run[n] for n in ("batch", "sequence", "layers", "width", "vocabulary"))
    if run["tflops_per_gpu"]:
        flops = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
        return flops / (run["gpus"] * float(run["tflops_per_gpu"]) * 1e12)
    return b * s / (run["gpus"] * float(run["tokens_per_s_per_gpu"]))


def described(run: dict[str, Any], folder: Path | None) -> ModelDescription:
    file = folder / f"{run['model']}.json" if folder is not None else None
    if file is not None and file.exists():
        return ModelDescription.load(file)
    shape = (run[n] for n in ("layers", "width", "heads", "vocabulary", "sequence"))
    model, sample = gpt_3d.make(*shape, llama=run["model"].startswith("Llama"))
    description = osdp.describe(model, *sample, precision="bf16")
    if file is not None:
        description.save(file)
    return description


def machine_of(run: dict[str, Any], float8: bool) -> Hardware:
    hardware = osdp.Hardware.load(MACHINES[run["gpu"]])
    rates = dict(hardware.flops_per_s_by_dtype)
    if run["gpu"] == "h100_96gb":
        assert hardware.kernel_rates is not None
        rates["bfloat16"] *= (500 / 700) ** (1 / 3)
        memory = hardware.kernel_rates.memory_bytes_per_s * 2400 / 3350
        kernels = dataclasses.replace(hardware.kernel_rates, memory_bytes_per_s=memory)
        hardware = dataclasses.replace(hardware, kernel_rates=kernels)
    if float8:
        rates["bfloat16"] *= FLOAT8
    return dataclasses.replace(
        hardware, world_size=run["gpus"], memory_bytes=MEMORY[run["gpu"]], flops_per_s_by_dtype=rates
    )


def styles(run: dict[str, Any]) -> dict[str, str]:
    return gpt_3d.LLAMA if run["model"].startswith("Llama") else gpt_3d.MEGATRON


def predicted_s(run: dict[str, Any], description: ModelDescription, float8: bool) -> tuple[float, int]:
    """The step at their degrees, and the micro-batch; an even cut."""
    llama = run["model"].startswith("Llama")
    again = run["recomputation"] == "full"
    space = Searched(
        modes=("NO_SHARD",) if not llama else ("SHARD_GRAD_OP",) if run["pp"] > 1 else ("FULL_SHARD",),
        granularity=(),
        checkpoint=("hold",) if again else ("none",),
        global_batch_size=run["batch"],
        hosts=max(1, run["gpus"] // PER_HOST),
    )
    machine = machine_of(run, float8)
    plan = styles(run) if run["tp"] > 1 else {}
    search = Search(
        SearchProblem(description, machine, run["gpus"], "adamw", PRECISION, "osdp", False, space),
        MEMORY[run["gpu"]] * 10,
        tensor=run["tp"],
        pipeline=run["pp"],
        styles=styles_of(description, plan),
        tp_plan=plan,
        schedule="1f1b",
    )
    # Without pipelining a replica of torchtitan has one micro-batch.
    least = run["batch"] * run["tp"] // run["gpus"] if llama and run["pp"] == 1 else 1
    found = []
    for candidate in search.candidates():
        if not least <= candidate.batch <= max(least, 8):
            continue
        pipelines = search.pipelines(candidate)
        played = pipelines.uniform(space.modes, space.checkpoint, 0)
        times = pipelines.pipelines(None).times(played.stages, played.cuts)  # type: ignore[arg-type]
        if not llama:
            times = [reduced_after(t) for t in times]
        step = _search.play_schedule("1f1b", times, candidate.micro_batches).step_ps
        if played.peak_bytes <= MEMORY[run["gpu"]] or candidate.batch == least:
            found.append((step * 1e-12, candidate.batch))
    return min(found)


def reduced_after(t: _search.StageTimes) -> _search.StageTimes:
    """Gradients are averaged when the last backward is over, not beside it."""
    return _search.StageTimes(
        first_forward_ps=t.first_forward_ps,
        forward_ps=t.forward_ps,
        backward_ps=t.backward_ps,
        last_backward_ps=t.backward_ps,
        optimizer_ps=t.optimizer_ps + max(0, t.last_backward_ps - t.backward_ps),
    )


def searched(
    run: dict[str, Any], description: ModelDescription, float8: bool, tensor: int | str, pipeline: int | str
) -> dict[str, Any]:
    began = time.process_time()
    plan = osdp.search(
        description,
        memory=MEMORY[run["gpu"]],
        world_size=run["gpus"],
        hosts=max(1, run["gpus"] // PER_HOST),
        hardware=machine_of(run, float8),
        precision=PRECISION,
        global_batch_size=run["batch"],
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        tp_plan=styles(run) if tensor != 1 else None,
    )
    assert isinstance(plan, osdp.ParallelPlan)
    return {
        "degrees": [plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel],
        "micro_batch": plan.micro_batch_size,
        "step_s": plan.step_time_s,
        "search_s": time.process_time() - began,
        "alternatives": {a.name: a.step_time_s for a in plan.alternatives},
    }


def work_of_token(parameters: int, layers: int, sequence: int, width: int) -> float:
    """Flops of forward and backward, without recomputation, with half of attention's square."""
    return 6.0 * (parameters + layers * sequence * width)


def parameters_of(run: dict[str, Any]) -> int:
    layers, h, vocabulary = run["layers"], run["width"], run["vocabulary"]
    if not run["model"].startswith("Llama"):
        return int(12 * layers * h**2 + vocabulary * h)
    block = 2 * h**2 + 2 * h * 8 * h // run["heads"] + 3 * h * gpt_3d.INNER[h]
    return int(layers * block + 2 * vocabulary * h)


def beside_fsdp(rows: list[dict[str, Any]]) -> None:
    """TFLOP/s of a GPU: published and found, beside published runs of FSDP alone."""
    print(f"\n{'model':14} {'published':>9} {'found':>6}  FSDP of others, 64 GPUs and more: TFLOP/s of a GPU")
    by_name = {run["model"]: run for run in runs()}
    for row in (r for r in rows if "found" in r):
        run = by_name[row["model"]]
        size = parameters_of(run)
        work = work_of_token(size, run["layers"], run["sequence"], run["width"]) * 1e-12
        tokens = run["batch"] * run["sequence"] / run["gpus"]
        alike = (r for r in published_runs.runs() if r.gpu[:4] == run["gpu"][:4] and r.gpus >= 64)
        nearest = sorted(alike, key=lambda r: (abs(log(r.parameters / size)), -r.gpus))[:2]
        said = (
            f"{r.model} on {r.gpus}: "
            f"{1e-12 * r.tokens_per_s_per_gpu * work_of_token(r.parameters, r.layers, r.sequence, r.width):.0f}"
            for r in nearest
        )
        speeds = (work * tokens / s for s in (row["published_s"], row["found"]["step_s"]))
        print(f"{row['model']:14} {next(speeds):9.0f} {next(speeds):6.0f}  {', '.join(said)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--descriptions", type=Path)
    parser.add_argument("--no-search", action="store_true")
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--stored", type=Path, help="print the last table from this file, and search nothing")
    given = parser.parse_args()
    if given.stored is not None:
        beside_fsdp(json.loads(given.stored.read_text())["rows"])
        return 0
    if given.descriptions is not None:
        given.descriptions.mkdir(parents=True, exist_ok=True)
    rows = []
    for run in (r for r in runs() if given.only in r["model"]):
        description = described(run, given.descriptions)
        float8 = "float8" in run["source"]
        own, (step, batch) = published_s(run), predicted_s(run, description, float8)
        row = {
            "model": run["model"],
            "degrees": [run["tp"], run["pp"], run["gpus"] // (run["tp"] * run["pp"])],
            "gpus": run["gpus"],
            "published_s": own,
            "predicted_s": step,
            "ratio": step / own,
            "micro_batch": batch,
        }
        if float8:
            row["ratio in bf16"] = predicted_s(run, description, False)[0] / own
        if not given.no_search:
            row["found"] = searched(run, description, float8, "auto", "auto")
            try:
                row["at their degrees"] = searched(run, description, float8, run["tp"], run["pp"])
            except osdp.InfeasibleError as error:
                row["at their degrees"] = {"why": str(error)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    error = fmean(abs(r["ratio"] - 1) for r in rows)
    print(f"mean error of {len(rows)} steps: {error:.1%}")
    beside_fsdp(rows)
    if given.json:
        given.json.write_text(
            json.dumps({"machine": machine(), "mean_error": error, "rows": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
