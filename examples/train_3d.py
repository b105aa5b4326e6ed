"""Trains a small GPT on real text with tensor, pipeline and data parallelism, beside one process: the same losses.

    torchrun --nproc-per-node 4 examples/train_3d.py --tensor 2 --pipeline 1
    torchrun --nproc-per-node 4 examples/train_3d.py --tensor 1 --pipeline 2

What is left of the ranks is data parallelism, over which each stage is sharded by a plan of its own. With --tensor 0 or
--pipeline 0 the search decides that degree.
"""

from __future__ import annotations

import argparse
import copy
import os

import torch
import torch.nn.functional as F
from gpt.console import say, title
from gpt.model import GPT
from gpt.settings import Settings
from gpt.text import Text
from torch import Tensor
from torch import distributed as dist

import osdp

SETTINGS = Settings(layers=4, width=128, context=64)
TP_PLAN = {"blocks.*.mlp.fc": "colwise", "blocks.*.mlp.proj": "rowwise"}
SAMPLES = 16  # of all replicas in a step


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(text: Text, step: int, replica: int = 0, replicas: int = 1) -> tuple[Tensor, Tensor]:
    return text.batch(step, SAMPLES // replicas, SETTINGS.context, SETTINGS.seed, replica, replicas)


def search(model: GPT, sample: Tensor, asked: argparse.Namespace) -> osdp.ParallelPlan:
    """Rank 0's plan for this machine, on every rank."""
    hardware = osdp.profile(model, sample, seconds=1)
    told: list[str | None] = [None]
    if dist.get_rank() == 0:
        plan = osdp.search(
            model,
            (sample,),
            memory=asked.memory,
            world_size=dist.get_world_size(),
            hardware=hardware,
            global_batch_size=SAMPLES,
            batch_size=asked.micro_batch,
            tensor_parallel=asked.tensor or "auto",
            pipeline_parallel=asked.pipeline or "auto",
            tp_plan=TP_PLAN if asked.tensor != 1 else None,
        )
        assert isinstance(plan, osdp.ParallelPlan)
        told = [plan.dumps()]
    dist.broadcast_object_list(told)
    return osdp.ParallelPlan.loads(str(told[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share each operator")
    parser.add_argument("--pipeline", type=int, default=1, help="stages")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--memory", default="2GiB", help="of a rank")
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("gloo")
    text = Text()
    torch.manual_seed(SETTINGS.seed)
    whole = GPT(SETTINGS, len(text.alphabet))
    model = copy.deepcopy(whole)

    plan = search(model, batch(text, 0)[0][:1], asked)
    title("the plan")
    say(str(plan))
    pipeline = osdp.parallelize(model, plan, loss_fn)

    optimizers = [torch.optim.AdamW(p, lr=1e-3) for p in (pipeline.parameters(), whole.parameters())]
    replica = pipeline.mesh["dp"].get_local_rank()
    title("losses: one process, and these ranks")
    worst = 0.0
    for step in range(asked.steps):
        tokens, targets = batch(text, step, replica, plan.data_parallel)
        loss = pipeline.step(tokens, target=targets)
        everything = [batch(text, step, r, plan.data_parallel) for r in range(plan.data_parallel)]
        wanted = loss_fn(whole(torch.cat([t for t, _ in everything])), torch.cat([t for _, t in everything]))
        wanted.backward()
        alone, together = wanted.item(), loss.item()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        worst = max(worst, abs(together - alone) / alone)
        if step % 5 == 0 or step == asked.steps - 1:
            say(f"step {step:>3}   {alone:.6f}   {together:.6f}")
    say(f"\nlargest difference: {worst:.1e} of the loss")
    dist.destroy_process_group()
    if worst > 1e-3:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
