"""The training loop: the same for every wrapper around the model."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gpt.console import Progress
from gpt.settings import Settings
from gpt.text import Text

VALIDATION_BATCHES = 8
WARM_UP = 20  # steps


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Up over the warm-up, then down along a cosine to a tenth."""
    if step < WARM_UP:
        return peak * (step + 1) / WARM_UP
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP))))


def batch(text: Text, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """This rank's rows of step `step`'s global batch."""
    return text.batch(
        step, settings.batch, settings.context, settings.seed, dist.get_rank(), dist.get_world_size()
    )


def slowest_rank(seconds: float) -> float:
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def mean_over_ranks(value: Tensor) -> float:
    total = value.detach().double()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    text: Text,
    settings: Settings,
    *,
    steps: int,
    of: int | None = None,
    peak_memory: Callable[[], int] | None = None,
) -> list[float]:
    """The first `steps` steps `of` so many (default: all); the mean loss over all ranks of each."""
    show = Progress(steps, settings.batch * settings.context * dist.get_world_size())
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, of or steps, settings.learning_rate)
        loss = model(*batch(text, settings, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean_over_ranks(loss))
        show.show(step + 1, losses[-1], peak_memory() if peak_memory else None)
    return losses


@torch.no_grad()
def evaluate(model: nn.Module, text: Text, settings: Settings) -> float:
    """The mean loss on fixed validation text, the same for any number of ranks.

    Every rank reads all of it: gathering is collective, and so every rank takes every step.
    """
    model.eval()
    losses = [
        model(*text.validation_batch(i, 8, settings.context)).double() for i in range(VALIDATION_BATCHES)
    ]
    return float(torch.stack(losses).mean())
