"""Trains a small GPT on real text under the best sharding plan for a memory limit. `make demo`, or

    torchrun --nproc-per-node 2 examples/train_gpt.py [--text FILE] [--steps 200] [--help]

Then `examples/reload_gpt.py` loads what it saved into another number of ranks.
"""

from __future__ import annotations

import copy
import json
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

READING = """
NO_SHARD: every rank holds all of it. FULL_SHARD: each rank holds its share, and gathers the rest when it computes.
"1/4 out": computed in 4 slices, 1 of them sharded. state: parameters, gradients and optimizer on one rank. saved:
activations that backward needs. Why each was chosen: osdp explain {plan}"""


def measure(model: nn.Module, sample: tuple[Tensor, Tensor]) -> osdp.Hardware:
    title("profile: how fast this machine is, since the best plan depends on it")
    hardware = osdp.profile(model, *sample, seconds=2)
    gather = hardware.all_gather
    for what, seconds in {
        "the model computes, forward and backward, one sample in": hardware.bare_step_s(1),
        "ranks exchange 1 MiB in": gather.alpha_s + gather.beta_s_per_byte * 2**20,
    }.items():
        say(f"{what} {seconds * 1e3:.2f} ms")
    return hardware


def train_unsharded(model: nn.Module, text: Text, settings: Settings) -> tuple[list[float], float]:
    """What DistributedDataParallel makes of the same model and batches: losses, and seconds per step."""
    title(f"DistributedDataParallel: {settings.compare} steps without sharding, for comparison")
    reference = DistributedDataParallel(copy.deepcopy(model))
    optimizer = make_optimizer(reference, settings)
    start = time.perf_counter()
    losses = train(reference, optimizer, text, settings, steps=settings.compare, of=settings.steps)
    return losses, slowest_rank(time.perf_counter() - start) / settings.compare


def show_side_by_side(theirs: list[float], ours: list[float]) -> None:
    pairs = list(zip(theirs, ours, strict=False))
    say("\nthe same losses? step   DistributedDataParallel         OSDP   difference")
    for step in range(0, len(pairs), 3):
        a, b = pairs[step]
        say(f"{step + 1:21}   {a:23.6f}   {b:10.6f}   {abs(a - b):.1e}")
    say(
        f"largest difference over {len(pairs)} steps: {max(abs(a - b) for a, b in pairs):.1e} (rounding: sharding "
        "changes where numbers are, not what they are)"
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
    parameters = sum(p.numel() for p in model.parameters())
    say(f"A GPT of {parameters / 1e6:.1f} million parameters learns to write like {text.source},")
    say(f"on {world} ranks: processes, each with its own part of every batch.")

    title("describe: what the model consists of; it is run once, without computing anything")
    sample = batch(text, settings, 0)
    description = osdp.describe(model, *sample)
    operators, blocks = len(description.operators), len(description.blocks)
    say(
        f"{operators} operators (layers that own parameters or activations) in {blocks} equal blocks; "
        f"{size(description.parameter_bytes)} of parameters"
    )

    hardware = measure(model, sample)

    title("search: per operator, hold it whole on every rank (fast) or share it out (saves memory)?")
    plan = search_mixture(
        description,
        world_size=world,
        hardware=hardware,
        batch_size=settings.batch,
        modes=("NO_SHARD", "FULL_SHARD"),  # the paper's; "auto" also knows SHARD_GRAD_OP
        checkpoint=False,
    )
    plan.save(out / "plan.json")
    whole = plan.replace(dict.fromkeys(plan.choices, osdp.Choice("NO_SHARD"))).simulate()
    say(
        f"the limit of this demo: {size(plan.memory_limit_bytes or 0)} a rank. With everything whole on every rank, as "
        f"DistributedDataParallel holds it, a step would take {size(whole.largest_peak_bytes)}\n"
    )
    say(str(plan))
    say(READING.format(plan=out / "plan.json"))

    expected, step_time = train_unsharded(model, text, settings)

    steps = max(settings.compare, min(settings.steps, int(settings.seconds / step_time)))
    title(
        f"train: {steps} steps under the plan, about {steps * step_time:.0f} s; the loss falls as the model learns"
    )
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

    title("report: the plan's promise, and what was measured")
    say(str(osdp.report(model, bare_step_s=bare_s)))

    title("checkpoint: each rank writes its part; another number of ranks can read it")
    record_timeline(model, batch(text, settings, steps), out / f"timeline-rank{rank}.json")
    osdp.save(model, optimizer, out / "checkpoint")
    validation = evaluate(model, text, settings)
    say(f"saved by {world} ranks; loss on text that it has not seen (validation): {validation:.6f}")
    if rank == 0:
        (out / "result.json").write_text(json.dumps({"validation": validation, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
