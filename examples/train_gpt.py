"""Trains a small GPT on real text under the best sharding plan for a memory limit. `make demo`, or

    torchrun --nproc-per-node 2 examples/train_gpt.py [--text FILE] [--steps 200] [--help]

Then `examples/reload_gpt.py` loads what it saved into another number of ranks.
"""

from __future__ import annotations

import copy
import json
from datetime import timedelta

import torch
from gpt.console import say, size, title
from gpt.model import GPT
from gpt.planning import search_mixture
from gpt.settings import Settings, parse
from gpt.text import Text
from gpt.training import batch, evaluate, make_optimizer, train
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import osdp


def main(settings: Settings) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    out, rank, world = settings.directory, dist.get_rank(), dist.get_world_size()
    out.mkdir(parents=True, exist_ok=True)
    text = Text(settings.text)
    torch.manual_seed(settings.seed)
    model = GPT(settings, len(text.alphabet))
    say(f"A GPT of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters on {world} ranks, to learn "
        f"{len(text.training) / 1e6:.1f} million characters from {text.source}.")  # fmt: skip

    title("describe: which operators the model has, and what each costs")
    sample = batch(text, settings, 0)
    description = osdp.describe(model, *sample)
    say(f"{len(description.operators)} operators in {len(description.blocks)} blocks, "
        f"{size(description.parameter_bytes)} of parameters")  # fmt: skip

    title("profile: what this machine's collectives and operators take")
    hardware = osdp.profile(model, sample)
    for name in ("all_gather", "reduce_scatter", "all_reduce"):
        cost = getattr(hardware, name)
        say(f"{name:15} alpha {cost.alpha_s * 1e6:7.1f} us   beta {cost.beta_s_per_byte * 1e9:6.3f} ns/byte")
    slowest = sorted(hardware.gamma_s.items(), key=lambda item: -item[1])[:3]
    say(f"computation     gamma of {len(hardware.gamma_s)} operators, the largest: "
        + ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in slowest) + " per sample")  # fmt: skip

    title("search: the fastest plan under a memory limit")
    plan = search_mixture(description, world_size=world, hardware=hardware, batch_size=settings.batch)
    plan.save(out / "plan.json")
    say(plan.explain())
    predicted = plan.predicted
    steps = max(settings.compare, min(settings.steps, int(settings.seconds / predicted.step_time_s)))

    title(f"DistributedDataParallel: the same seed, the first {settings.compare} steps, to compare with")
    say(f"about {settings.compare * predicted.step_time_s:.0f} s")
    reference = DistributedDataParallel(copy.deepcopy(model))
    optimizer = make_optimizer(reference, settings)
    expected = train(reference, optimizer, text, settings, steps=settings.compare, of=steps, progress=False)
    del reference, optimizer

    title(f"train: {steps} steps under the plan")
    say(f"about {steps * predicted.step_time_s:.0f} s")
    osdp.fully_shard(model, plan)
    optimizer = make_optimizer(model, settings)
    losses = train(model, optimizer, text, settings, steps=steps, of=steps,
                   peak_memory=lambda: osdp.report(model).measured.peak_memory_bytes)  # fmt: skip
    say("\nstep   DistributedDataParallel         OSDP   difference")
    differences = [abs(a - b) for a, b in zip(expected, losses, strict=False)]
    for step, (theirs, ours) in enumerate(zip(expected, losses, strict=False)):
        say(f"{step + 1:4}   {theirs:23.6f}   {ours:10.6f}   {abs(theirs - ours):.1e}")
    say(f"largest difference over {len(expected)} steps: {max(differences):.1e}")

    title("report: what was predicted, and what was measured")
    say(str(osdp.report(model)))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        model(*batch(text, settings, steps)).backward()
    optimizer.zero_grad(set_to_none=True)
    profiler.export_chrome_trace(str(out / f"timeline-rank{rank}.json"))

    title("checkpoint")
    validation = evaluate(model, text, settings)
    osdp.save(model, optimizer, out / "checkpoint")
    say(f"validation loss {validation:.6f}; saved by {world} ranks to {out / 'checkpoint'}")
    if rank == 0:
        (out / "result.json").write_text(json.dumps({"validation": validation, "losses": losses}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
