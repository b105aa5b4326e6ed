"""The model of the equivalence matrix: residual blocks, of widths and a vocabulary that 3 and 4 do not divide."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support.workload import Batch, Workload

VOCABULARY, HIDDEN, INNER, LENGTH = 50, 10, 18, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Blocks(nn.Module):
    """`checkpointing`: how the user recomputes every block: None, "reentrant" or "non-reentrant"."""

    def __init__(self, count: int = 2, checkpointing: str | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(count))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.checkpointing = checkpointing

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        return self.head(self.norm(x))


def tokens(samples: int) -> Batch:
    drawn = torch.randint(VOCABULARY, (samples, LENGTH + 1))
    return (drawn[:, :-1],), drawn[:, 1:]


def surprise(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


@functools.cache  # equal ones are described once
def workload(checkpointing: str | None = None, count: int = 2) -> Workload:
    return Workload(lambda: Blocks(count, checkpointing), tokens, surprise)
