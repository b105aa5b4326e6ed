"""How true a ParallelPlan's predictions are: osdp.search's plans for fixed degrees, carried out by osdp.parallelize.

    python benchmarks/parallelize.py [--json FILE [--resume]] [--steps 7] [--settings one-host two-hosts-1gbit]
        [--degrees 1x2x2 ...]

Four ranks (on one host, and on two with 1 Gb/s between them and cores of their own, which needs root and iproute2) train a
GPT with tensor x pipeline x data of 1 x 1 x 4, 2 x 1 x 2, 1 x 2 x 2, 2 x 2 x 1 and 1 x 4 x 1, three plans each: searched
with ample memory, under a limit that is a fifth below what that plan holds (or as near to it as is feasible), and, where
there are several replicas, with FULL_SHARD alone, gathered in every micro-batch. Before each plan and after it the model
without parallelism takes steps on every rank: `now` is the prediction on a machine that is as fast as it was then, `error`
its error. What travels between hosts keeps its speed. Peaks are of each stage's live heap (heap_peak.c), over what the
process held before the model; a plan's error is that of its worst stage. `auto` are the degrees that the search returns
on this machine when it is free.

Last, a model whose head is as large as several blocks is trained in two stages of one rank each (more ranks than cores
would take turns, and no rank wait), with the search's cut and with equally many blocks in both, in turns. Each part is
kept in FILE when it is measured; --resume goes on after those that FILE has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean, median
from typing import Any

from support.launch import as_rank, run_ranks
from support.machine import another_machine, machine, machine_line

SETTINGS: dict[str, dict[str, Any]] = {
    "one-host": {"hosts": 1},
    "two-hosts-1gbit": {"hosts": 2, "rate": "1gbit"},
}
DEGREES = ("1x1x4", "2x1x2", "1x2x2", "2x2x1", "1x4x1")
RANKS, SAMPLES, MICRO_BATCH, LAYERS = 4, 16, 2, 4
LARGE_VOCABULARY = 16384
WARM_UP = 2
GOAL = 0.10  # mean error of step and of peak


class Trial:
    """A model of this benchmark on this rank, its search, and steps of its plans."""

    def __init__(self, steps: int, hosts: int, vocabulary: int) -> None:
        import torch
        from support.heap import Heap
        from support.parallel_gpt import GPT, TOKENS

        import osdp

        self.steps, self.hosts, self.vocabulary = steps, hosts, vocabulary
        self.generator = torch.Generator().manual_seed(1)  # the same batch on all ranks of a replica
        self.tokens, self.heap = TOKENS, Heap()
        torch.manual_seed(0)
        self.bare = GPT(LAYERS, vocabulary)
        sample = self.batch(MICRO_BATCH)
        self.description = osdp.describe(self.bare, *sample)
        self.hardware = osdp.profile(self.bare, *sample, seconds=5)
        self.alone_s = self.hardware.bare_step_s(MICRO_BATCH)

    def batch(self, samples: int) -> Any:
        import torch

        tokens = torch.randint(0, self.vocabulary, (samples, self.tokens + 1), generator=self.generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def search(self, memory: float, tensor: int | str, pipeline: int | str, **options: Any) -> Any:
        """Rank 0's plan, on every rank; None if there is none."""
        import torch.distributed as dist
        from support.parallel_gpt import STYLES

        import osdp

        told: list[str | None] = [None]
        if dist.get_rank() == 0:
            with suppress(osdp.InfeasibleError):
                told = [
                    osdp.search(
                        self.description,
                        memory=int(memory),
                        world_size=dist.get_world_size(),
                        hosts=self.hosts,
                        hardware=self.hardware,
                        global_batch_size=SAMPLES,
                        batch_size=MICRO_BATCH,
                        tensor_parallel=tensor,
                        pipeline_parallel=pipeline,
                        tp_plan=STYLES if tensor != 1 else None,
                        granularity=1,
                        **options,
                    ).dumps()
                ]
        dist.broadcast_object_list(told)
        return None if told[0] is None else osdp.ParallelPlan.loads(told[0])

    def bare_s(self) -> list[float]:
        import torch.distributed as dist

        taken = []
        for _ in range(3):
            inputs = self.batch(MICRO_BATCH)
            dist.barrier()
            begin = time.perf_counter()
            self.bare(*inputs).backward()
            taken.append(time.perf_counter() - begin)
            self.bare.zero_grad(set_to_none=True)
        return taken

    def made(self, plan: Any) -> tuple[Any, Any]:
        import torch
        from support.parallel_gpt import GPT, loss_of

        import osdp

        torch.manual_seed(0)
        pipeline = osdp.parallelize(GPT(LAYERS, self.vocabulary), plan, loss_of)
        return pipeline, torch.optim.AdamW(pipeline.parameters(), lr=1e-4, fused=True)

    def step_s(self, pipeline: Any, optimizer: Any) -> float:
        import torch.distributed as dist

        tokens, targets = self.batch(SAMPLES // pipeline.plan.data_parallel)
        dist.barrier()
        begin = time.perf_counter()
        pipeline.step(tokens, target=targets)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begin

    def measured(self, plan: Any) -> dict[str, Any]:
        import torch.distributed as dist

        beside, before = self.bare_s(), self.heap.live()
        pipeline, optimizer = self.made(plan)
        for _ in range(WARM_UP):  # the optimizer has its state, and the order of units is known
            self.step_s(pipeline, optimizer)
        taken, peak = [], 0
        for _ in range(self.steps):
            self.heap.restart()
            taken.append(self.step_s(pipeline, optimizer))
            peak = max(peak, self.heap.peak() - before)
        beside += self.bare_s()
        everyones: list[Any] = [None] * RANKS
        dist.all_gather_object(everyones, (pipeline.stage, peak, median(beside)))
        # As osdp.profile measured `alone_s`: ranks that share cores leave a barrier one after the other.
        slowdown = mean(bare for *_, bare in everyones) / self.alone_s
        stages = [
            {
                "peak_bytes": max(p for i, p, _ in everyones if i == stage),
                "predicted_bytes": part.plan.predicted.peak_memory_bytes,
            }
            for stage, part in enumerate(plan.stages)
        ]
        return {
            "predicted_s": plan.step_time_s,
            "now_s": plan.step_time_s * slowdown if self.hosts == 1 else self._as_fast_as(plan, slowdown),
            "step_s": taken,
            "stages": stages,
            "limit_bytes": plan.memory_limit_bytes,
            "slowdown": [bare / self.alone_s for *_, bare in everyones],
            "modes": [sorted({c.mode for c in s.plan.choices.values()}) for s in plan.stages],
            "recomputed": [len(s.plan.recompute) for s in plan.stages],
        }

    def _as_fast_as(self, plan: Any, slowdown: float) -> float:
        """The whole is at least as much slower as no link between hosts was: the mean of both bounds."""
        return float(plan.step_time_s * (1 + slowdown) / 2)


def predictions(degrees: str, steps: str, hosts: str) -> dict[str, Any]:
    from support.parallel_gpt import VOCABULARY

    trial = Trial(int(steps), int(hosts), VOCABULARY)
    tensor, pipeline, _ = map(int, degrees.split("x"))
    ample = 4e9
    plans = {"ample": trial.search(ample, tensor, pipeline)}
    peak = plans["ample"].peak_memory_bytes
    for part in (0.8, 0.85, 0.9, 0.95):
        if (tight := trial.search(part * peak, tensor, pipeline)) is not None:
            plans[f"{100 * part:.0f}% of its peak"] = tight
            break
    if plans["ample"].data_parallel > 1:
        plans["FULL_SHARD"] = trial.search(ample, tensor, pipeline, modes=["FULL_SHARD"])
    rows = {name: trial.measured(plan) for name, plan in plans.items()}
    free = trial.search(ample, "auto", "auto")
    auto = f"{free.tensor_parallel}x{free.pipeline_parallel}x{free.data_parallel}"
    return {"plans": rows, "auto": auto, "auto_s": free.step_time_s, "machine": machine()}


def unbalanced(steps: str, hosts: str) -> dict[str, Any]:
    """Steps of two cuts in turns."""
    trial = Trial(int(steps), int(hosts), LARGE_VOCABULARY)
    plans = {"searched": trial.search(8e9, 1, 2)}
    with evenly():
        plans["even"] = trial.search(8e9, 1, 2)
    made = {name: trial.made(plan) for name, plan in plans.items()}
    taken: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(WARM_UP + int(steps)):
        for name in list(made)[:: 1 if turn % 2 else -1]:
            seconds = trial.step_s(*made[name])
            if turn >= WARM_UP:
                taken[name].append(seconds)
    return {
        name: {
            "predicted_s": plans[name].step_time_s,
            "step_s": taken[name],
            "blocks": [sum(m.startswith("blocks.") for m in s.modules) for s in plans[name].stages],
        }
        for name in plans
    }


@contextmanager
def evenly() -> Iterator[None]:
    """Context in which searches cut the model into two stages with equally many blocks."""
    from osdp.planning.degrees import cuts, pipelines

    kind = cuts.Pipelines
    balanced, improved = pipelines.balanced, kind.improved

    def middle(weights: Sequence[float], stages: int) -> tuple[int, ...]:
        return 0, 1 + LAYERS // stages, len(weights)  # the first link is the table

    pipelines.balanced = middle
    kind.improved = lambda self, start, rounds: self.played(start)
    try:
        yield
    finally:
        pipelines.balanced, kind.improved = balanced, improved


def errors(row: dict[str, Any]) -> tuple[float, float, bool]:
    """Of the step, of the worst stage's peak, and whether every stage keeps the limit."""
    step = row["now_s"] / median(row["step_s"]) - 1
    peaks = [s["predicted_bytes"] / s["peak_bytes"] - 1 for s in row["stages"]]
    kept = all(s["peak_bytes"] <= row["limit_bytes"] for s in row["stages"])
    return step, max(peaks, key=abs), kept


def show(setting: str, found: dict[str, Any]) -> None:
    print(f"\n{setting:22} {'predicted':>10} {'now':>8} {'measured':>9} {'error':>7} {'peak':>7}  limit kept")
    for degrees, result in found.items():
        if degrees == "unbalanced":
            continue
        for name, row in result["plans"].items():
            step, peak, kept = errors(row)
            print(
                f"{degrees} {name:16} {1e3 * row['predicted_s']:7.0f} ms {1e3 * row['now_s']:5.0f} ms "
                f"{1e3 * median(row['step_s']):6.0f} ms {step:+7.1%} {peak:+7.1%}  {'yes' if kept else 'NO'}"
            )
    rows = [errors(row) for k, r in found.items() if k != "unbalanced" for row in r["plans"].values()]
    if rows:
        told = [
            row["predicted_s"] / median(row["step_s"]) - 1
            for k, r in found.items()
            if k != "unbalanced"
            for row in r["plans"].values()
        ]
        print(
            f"mean error of the step as the search returned it {mean(map(abs, told)):.1%}, on a machine as fast as it was "
            f"then {mean(abs(s) for s, _, _ in rows):.1%}, of the peak "
            f"{mean(abs(p) for _, p, _ in rows):.1%} (goal {GOAL:.0%}); stages over their limit: "
            f"{sum(not kept for *_, kept in rows)}"
        )
        fastest = {k: median(r["plans"]["ample"]["step_s"]) for k, r in found.items() if k != "unbalanced"}
        autos = [r["auto"] for k, r in found.items() if k != "unbalanced"]
        print("fastest measured:", min(fastest, key=lambda k: fastest[k]), "the search's choices:", *autos)
    if "unbalanced" in found:
        sides = found["unbalanced"]
        ratio = median(
            e / s for s, e in zip(sides["searched"]["step_s"], sides["even"]["step_s"], strict=True)
        )
        print(
            f"large head: blocks {sides['searched']['blocks']} by the search, {sides['even']['blocks']} even, which takes "
            f"{ratio:.2f} of its step (predicted {sides['even']['predicted_s'] / sides['searched']['predicted_s']:.2f})"
        )


def measure(what: str, *arguments: str) -> dict[str, Any]:
    return unbalanced(*arguments) if what == "unbalanced" else predictions(what, *arguments)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--resume", action="store_true", help="leave out what this file has already")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--degrees", nargs="+", default=[*DEGREES, "unbalanced"])
    arguments = parser.parse_args()
    here = machine()
    results: dict[str, Any] = {}
    if arguments.resume and arguments.json and arguments.json.exists():
        known = json.loads(arguments.json.read_text())
        if known["steps"] != arguments.steps or another_machine({"the file": known}):
            parser.error(
                f"{arguments.json} has other steps, or another machine's: --resume goes on with the same"
            )
        results = known["settings"]
    for setting in arguments.settings:
        where = SETTINGS[setting]
        found = results.setdefault(setting, {})
        for what in arguments.degrees:
            if what in found:
                continue
            begin = time.monotonic()
            told = [what, str(arguments.steps), str(where["hosts"])]
            ranks = 2 if what == "unbalanced" else RANKS
            found[what] = run_ranks(__file__, told, ranks, seconds=1200, own_cores=True, **where)
            if arguments.json:
                text = json.dumps({"machine": here, "steps": arguments.steps, "settings": results}, indent=1)
                arguments.json.write_text(text + "\n")
            print(
                f"{setting} {what}: measured in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True
            )
        show(setting, found)
    print(machine_line(here))
    return 0


if __name__ == "__main__":
    if not as_rank(measure):
        sys.exit(main())
