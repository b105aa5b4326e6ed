"""Trains a small GPT on real text under the best sharding plan for a memory limit. `make demo`, or

    torchrun --nproc-per-node 2 examples/train_gpt.py [--text FILE] [--steps 200] [--help]

Then `examples/reload_gpt.py` loads what it saved into another number of ranks.
"""

from __future__ import annotations

import copy
import json
import re
import time
from datetime import timedelta
from pathlib import Path

import torch
from gpt.console import say, size, title
from gpt.model import GPT
from gpt.planning import search_mixture
from gpt.settings import Settings, parse
from gpt.text import Text
from gpt.training import batch, evaluate, make_optimizer, slowest_rank, train
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import osdp
from osdp.sharding.report import Report


def measure(model: nn.Module, sample: tuple[Tensor, Tensor]) -> osdp.Hardware:
    title("profile: what this machine's collectives and operators take")
    hardware = osdp.profile(model, *sample, seconds=6)
    for name in ("all_gather", "reduce_scatter", "all_reduce"):
        cost = getattr(hardware, name)
        say(
            f"{name:24} alpha {cost.alpha_s * 1e6:6.1f} us, beta {cost.beta_s_per_byte * 1e9:.3f} ns per byte"
        )
    gamma = {re.sub(r"\.\d+\.", ".*.", name): seconds for name, seconds in hardware.gamma_s.items()}
    for name, seconds in sorted(gamma.items(), key=lambda item: -item[1])[:6]:
        say(f"{name:24} gamma {seconds * 1e3:6.2f} ms per sample, forward and backward")
    return hardware


def train_unsharded(model: nn.Module, text: Text, settings: Settings) -> tuple[list[float], float]:
    """What DistributedDataParallel makes of the same model and batches: losses, and seconds per step."""
    title(f"DistributedDataParallel: the same seed, the first {settings.compare} steps, to compare with")
    reference = DistributedDataParallel(copy.deepcopy(model))
    optimizer = make_optimizer(reference, settings)
    start = time.perf_counter()
    losses = train(reference, optimizer, text, settings, steps=settings.compare, of=settings.steps)
    return losses, slowest_rank(time.perf_counter() - start) / settings.compare


def show_side_by_side(theirs: list[float], ours: list[float]) -> None:
    pairs = list(zip(theirs, ours, strict=False))
    say("\nstep   DistributedDataParallel         OSDP   difference")
    for step, (a, b) in enumerate(pairs, start=1):
        say(f"{step:4}   {a:23.6f}   {b:10.6f}   {abs(a - b):.1e}")
    say(f"largest difference over {len(pairs)} steps: {max(abs(a - b) for a, b in pairs):.1e}")


def show_machine(report: Report) -> None:
    """The step as predicted when the machine was profiled, and for the machine as it is now."""
    if report.drift is None or report.drift.bare_step is None or report.predicted_step_time_now_s is None:
        return
    say(f"\nthe model alone, forward and backward: {report.drift.bare_step}")
    then_s, now_s, measured_s = (
        report.predicted_step_time_s,
        report.predicted_step_time_now_s,
        report.measured_step_time_s,
    )
    steps = {
        "for the machine as profiled": then_s,
        "for the machine as it is now": now_s,
        "measured": measured_s,
    }
    say(
        "a step: " + ", ".join(f"{seconds * 1e3:.1f} ms {what}" for what, seconds in steps.items() if seconds)
    )


def record_timeline(model: nn.Module, data: tuple[Tensor, Tensor], file: Path) -> None:
    """One forward and backward, for https://ui.perfetto.dev."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model(*data).backward()
    model.zero_grad(set_to_none=True)
    profiler.export_chrome_trace(str(file))


def main(settings: Settings) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    out, rank, world = settings.directory, dist.get_rank(), dist.get_world_size()
    out.mkdir(parents=True, exist_ok=True)
    text = Text(settings.text)
    torch.manual_seed(settings.seed)
    model = GPT(settings, len(text.alphabet))
    say(
        f"A GPT of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters, on {world} ranks; it learns"
    )
    say(f"{len(text.training) / 1e6:.1f} million characters of {text.source}.")

    title("describe: which operators the model has, and what each costs")
    sample = batch(text, settings, 0)
    description = osdp.describe(model, *sample)
    operators, blocks = len(description.operators), len(description.blocks)
    say(f"{operators} operators, {blocks} blocks, {size(description.parameter_bytes)} of parameters")

    hardware = measure(model, sample)

    title("search: the fastest plan under a memory limit")
    plan = search_mixture(
        description,
        world_size=world,
        hardware=hardware,
        batch_size=settings.batch,
        modes=("NO_SHARD", "FULL_SHARD"),  # the paper's; "auto" also knows SHARD_GRAD_OP
        checkpoint=False,
    )
    plan.save(out / "plan.json")
    say(plan.explain())

    expected, step_time = train_unsharded(model, text, settings)

    steps = max(settings.compare, min(settings.steps, int(settings.seconds / step_time)))
    title(f"train: {steps} steps under the plan, about {steps * step_time:.0f} s")
    bare_s = osdp.bare_step_s(model, *sample)  # the machine's speed may have changed since it was profiled
    osdp.fully_shard(model, plan)
    optimizer = make_optimizer(model, settings)
    losses = train(
        model,
        optimizer,
        text,
        settings,
        steps=steps,
        peak_memory=lambda: osdp.report(model, machine=False).measured_peak_memory_bytes,
    )
    show_side_by_side(expected, losses)

    title("report: what was predicted, and what was measured")
    report = osdp.report(model, bare_step_s=bare_s)
    say(str(report))
    show_machine(report)

    title("checkpoint")
    record_timeline(model, batch(text, settings, steps), out / f"timeline-rank{rank}.json")
    osdp.save(model, optimizer, out / "checkpoint")
    validation = evaluate(model, text, settings)
    say(f"saved by {world} ranks; validation loss {validation:.6f}")
    if rank == 0:
        (out / "result.json").write_text(json.dumps({"validation": validation, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
