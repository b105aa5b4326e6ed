"""nanoGPT's loop: two groups of parameters, accumulation, warm-up and cosine; sharded checkpoints, and resuming from them.

torchrun --nproc-per-node 2 examples/drop_in/nanogpt_resume.py --out build/nanogpt --max_iters 5
torchrun --nproc-per-node 2 examples/drop_in/nanogpt_resume.py --out build/nanogpt --init_from resume
"""

from __future__ import annotations

import argparse
import contextlib
import math

import torch
from small_gpt import GPT, Block, batch, device_of_rank, loss_of, show
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardedOptimStateDictConfig, ShardedStateDictConfig, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

LEARNING_RATE, WARMUP, LAST, MICRO_BATCHES, EVAL_INTERVAL = 3e-3, 2, 10, 2, 5


def learning_rate(iteration: int) -> float:
    if iteration < WARMUP:
        return LEARNING_RATE * (iteration + 1) / WARMUP
    done = (iteration - WARMUP) / (LAST - WARMUP)
    return LEARNING_RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Matrices decay, the rest does not. By name: a shard's own dimensions say nothing."""
    decays = [p for n, p in model.named_parameters() if n.endswith("weight") and "norm" not in n]
    rest = [p for n, p in model.named_parameters() if not (n.endswith("weight") and "norm" not in n)]
    groups = [{"params": decays, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))


@torch.no_grad()
def evaluate(model: nn.Module, device: torch.device) -> torch.Tensor:
    model.eval()
    losses = [
        loss_of(model(tokens), targets) for tokens, targets in (batch(5000 + i, device) for i in range(2))
    ]
    model.train()
    return torch.stack(losses).mean()


def main(out: str, init_from: str, max_iters: int) -> None:
    device = device_of_rank()
    torch.manual_seed(1)
    model = FSDP(
        GPT().to(device), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=device
    )
    optimizer = make_optimizer(model)
    FSDP.set_state_dict_type(
        model,
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(offload_to_cpu=True),
        ShardedOptimStateDictConfig(offload_to_cpu=True),
    )

    first = 0
    if init_from == "resume":
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
            "iteration": 0,
        }
        dcp.load(checkpoint, checkpoint_id=out)
        model.load_state_dict(checkpoint["model"])
        state = FSDP.optim_state_dict_to_load(model, optimizer, checkpoint["optimizer"])
        optimizer.load_state_dict(state)
        first = checkpoint["iteration"]

    for iteration in range(first, max_iters):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(iteration)
        for micro in range(MICRO_BATCHES):
            tokens, targets = batch(MICRO_BATCHES * iteration + micro, device)
            with model.no_sync() if micro < MICRO_BATCHES - 1 else contextlib.nullcontext():
                loss = loss_of(model(tokens), targets) / MICRO_BATCHES
                loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        show(iteration, loss * MICRO_BATCHES)
        if (iteration + 1) % EVAL_INTERVAL == 0:
            show(1000 + iteration, evaluate(model, device))
            checkpoint = {
                "model": model.state_dict(),
                "optimizer": FSDP.optim_state_dict(model, optimizer),
                "iteration": iteration + 1,
            }
            dcp.save(checkpoint, checkpoint_id=out)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="build/nanogpt")
    parser.add_argument("--init_from", choices=["scratch", "resume"], default="scratch")
    parser.add_argument("--max_iters", type=int, default=LAST)
    arguments = parser.parse_args()
    main(arguments.out, arguments.init_from, arguments.max_iters)
