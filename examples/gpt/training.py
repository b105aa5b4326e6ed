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


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Up over the first 20 steps, then down along a cosine to a tenth."""
    if step < 20:
        return peak * (step + 1) / 20
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - 20) / max(1, steps - 20))))


def batch(text: Text, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """This rank's rows of step `step`'s global batch."""
    return text.batch(
        step, settings.batch, settings.context, settings.seed, dist.get_rank(), dist.get_world_size()
    )


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
    of: int,
    peak_memory: Callable[[], int] | None = None,
    progress: bool = True,
) -> list[float]:
    """The first `steps` of a schedule `of` so many; the mean loss over all ranks of each step."""
    show = Progress(steps, settings.batch * settings.context * dist.get_world_size())
    losses = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, of, settings.learning_rate)
        loss = model(*batch(text, settings, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(mean_over_ranks(loss))
        if progress:
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
