"""Loads the checkpoint of train_gpt.py into another number of ranks under another plan, and lets the model write.

torchrun --nproc-per-node 1 examples/reload_gpt.py
"""

from __future__ import annotations

import json
from datetime import timedelta

import torch
from gpt.console import say
from gpt.model import GPT, generate
from gpt.settings import Settings, parse
from gpt.text import Text
from gpt.training import batch, evaluate, make_optimizer
from torch import distributed as dist

import osdp

PROMPT = "def read_file(self, name"


def main(settings: Settings) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    out, world = settings.directory, dist.get_world_size()
    text = Text(settings.text)
    torch.manual_seed(settings.seed + 1)  # other weights than those that were trained
    model = GPT(settings, len(text.alphabet))
    plan = osdp.Plan.uniform(osdp.describe(model, *batch(text, settings, 0)), "FULL_SHARD", granularity=2)
    osdp.fully_shard(model, plan)
    optimizer = make_optimizer(model, settings)

    before = evaluate(model, text, settings)
    osdp.load(model, optimizer, out / "checkpoint")
    found, expected = (
        evaluate(model, text, settings),
        json.loads((out / "result.json").read_text())["validation"],
    )
    say(
        f"loaded by {world} rank, under another plan: validation loss {found:.6f} (before loading {before:.6f})"
    )
    if f"{found:.5e}" != f"{expected:.5e}" and abs(found - expected) > 5e-6:
        raise SystemExit(f"the validation loss changed from {expected:.9f} to {found:.9f}")
    say("the same to 6 digits as when it was saved: nothing was lost")

    say("\n== what it writes, one character at a time: after so few steps it only begins to look like code")
    prompt = PROMPT if set(PROMPT) <= set(text.alphabet) else text.alphabet[-1]
    say(text.decode(generate(model, text.encode(prompt), 240, settings.context)))

    say(f"""
== done. What it left:
plan         {out}/plan.json            (osdp explain {out}/plan.json: the reasons for each choice)
checkpoint   {out}/checkpoint           (osdp export {out}/checkpoint weights/: as safetensors)
timelines    {out}/timeline-rank*.json  (a recorded step: open in https://ui.perfetto.dev)
Next: docs/first-hour.md, the same for a model of your own""")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(parse())
