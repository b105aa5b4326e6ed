"""A run that goes on where it was killed, with the same losses:

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/resume.py RUN

(The variable gives every start a store of its own: in torch's shared one, gloo may find the addresses of ranks that died.)
It runs for a minute, and each line says how to kill its rank from another terminal. torchrun then starts all of them again,
and each start loads what RUN/latest names. What else a run needs to go on is made from the step: the batches here, and the
schedule from what was saved beside the model.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import osdp

STEPS, EVERY = 60, 5
PAUSE_S = 1.0  # after each step: this model's take milliseconds, too few to kill a rank in


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """The same in every run: a sampler that knows its step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, 16, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


def train(folder: str, told: Callable[[int, float], None]) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    osdp.fully_shard(model, osdp.Plan.uniform(osdp.describe(model, batch_of(0, rank)[0])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    with osdp.Checkpoints(folder, keep=2) as checkpoints:
        start = checkpoints.load(model, optimizer)  # 0 in a new run
        if start > 0:
            schedule.load_state_dict(checkpoints.extra["schedule"])
        for step in range(start, STEPS):
            inputs, wanted = batch_of(step, rank)
            loss = nn.functional.mse_loss(model(inputs), wanted)
            loss.backward()
            optimizer.step(), schedule.step(), optimizer.zero_grad()
            told(step, loss.item())
            if (step + 1) % EVERY == 0:
                # Returns when a copy is made: files are written while training goes on.
                checkpoints.save(model, optimizer, step + 1, extra={"schedule": schedule.state_dict()})
    torch.distributed.destroy_process_group()


def tell(step: int, loss: float) -> None:
    rank = torch.distributed.get_rank()
    print(f"step {step}: loss {loss:.6f} (rank {rank}: kill {os.getpid()})", flush=True)
    time.sleep(PAUSE_S)


if __name__ == "__main__":
    train(sys.argv[1], tell)
