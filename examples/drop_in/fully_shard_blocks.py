"""FSDP2: every block, then the model; clipping; saved and loaded by torch's distributed checkpoint.

torchrun --nproc-per-node 2 examples/drop_in/fully_shard_blocks.py --out build/blocks
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from small_gpt import GPT, batch, device_of_rank, loss_of, show
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = GPT().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, device: torch.device) -> None:
    for step in steps:
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            tokens, targets = batch(2 * step + micro, device)
            loss = loss_of(model(tokens), targets) / 2
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        show(step, loss)


def main(out: Path) -> None:
    device = device_of_rank()
    torch.manual_seed(1)
    model, optimizer = build(device)
    train(model, optimizer, range(5), device)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=out)

    model, optimizer = build(device)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=out)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    train(model, optimizer, range(5, 10), device)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("build/blocks"))
    main(parser.parse_args().out)
