"""Optimizers work on what each rank holds: groups by dimension, momentum, fused, foreach."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from harness import Member
from support import blocks, plans
from support.pair import train_all
from torch import nn


def by_dimension(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Weight decay for matrices only, as most training scripts group them: after sharding."""
    parameters = list(parameters)
    matrices = [p for p in parameters if p.dim() >= 2]
    others = [p for p in parameters if p.dim() < 2]
    assert matrices and others
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2)


OPTIMIZERS = {
    "AdamW in groups by dimension": by_dimension,
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "fused Adam": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "foreach Adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "AMSGrad, one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, eps=1e-4),
}


PLANS = ("NO_SHARD", "FULL_SHARD", "slices along in", "mixture 0")


def train(me: Member, name: str) -> None:
    chosen = lambda d: {key: plans.everything(d)[key] for key in PLANS}  # noqa: E731
    train_all(me, blocks.workload(), chosen, optimizer=OPTIMIZERS[name])


@pytest.mark.parametrize(("name", "world"), [(name, 2 + i % 2) for i, name in enumerate(OPTIMIZERS)])
def test_optimizer(ranks, name, world):
    ranks(train, name, world=world)
