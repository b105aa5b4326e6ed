"""A small GPT under Accelerate.

torchrun --nproc-per-node 2 examples/frameworks/train_accelerate.py                  # DDP
torchrun --nproc-per-node 2 examples/frameworks/train_accelerate.py --memory 40MiB   # the fastest plan that fits
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from small_gpt import LENGTH, SAMPLES, WORDS, gpt
from torch.utils.data import DataLoader

from osdp.integrations.accelerate import OSDPAccelerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", help="of a rank, such as 40MiB; without it the run is DDP's")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--directory", type=Path, help="where the states are saved after the steps")
    parser.add_argument("--resume", type=Path, help="a directory to go on from, saved under either")
    told = parser.parse_args()
    set_seed(0)
    words = torch.randint(0, WORDS, (256, LENGTH))
    if not told.memory:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    else:
        accelerator = OSDPAccelerator(
            cpu=True, gradient_accumulation_steps=2, memory=told.memory,
            sample={"input_ids": words[:SAMPLES], "labels": words[:SAMPLES]}, search={"batch_size": SAMPLES},
        )  # fmt: skip
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader([{"input_ids": w, "labels": w} for w in words], batch_size=SAMPLES)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if told.resume:
        accelerator.load_state(told.resume)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
        if len(losses) == 2 * told.steps:
            break
    if told.directory:
        accelerator.save_state(told.directory)
    held = sum(p.numel() for p in model.parameters())
    model, optimizer = accelerator.free_memory(model, optimizer)  # DDP's would else outlive its process group
    if accelerator.is_main_process:
        print(json.dumps({"losses": losses, "held parameters": held}))
    accelerator.end_training()


if __name__ == "__main__":
    main()
