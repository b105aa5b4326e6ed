"""Random models of what is computed in slices: tables, heads tied to them, Conv1D, convolutions, products of odd sizes."""

from __future__ import annotations

import random

import torch
from torch import nn

from support.workload import Batch

LENGTH = 4


class Turned(nn.Module):
    def __init__(self, dice: random.Random, width: int) -> None:
        from transformers.pytorch_utils import Conv1D

        super().__init__()
        inner = dice.choice((3, 7, 10))
        self.up, self.down = Conv1D(inner, width), Conv1D(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Products(nn.Module):
    def __init__(self, dice: random.Random, width: int) -> None:
        super().__init__()
        inner = dice.choice((1, 3, 7, 12))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner, bias=dice.random() < 0.5), nn.Linear(inner, width)
        self.again = dice.random() < 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.norm(x))
        if self.again:
            h = h + self.up(torch.tanh(x))
        return x + self.down(torch.tanh(h))


class Convolved(nn.Module):
    """Along the sequence."""

    def __init__(self, dice: random.Random, width: int) -> None:
        super().__init__()
        mode = dice.choice(("zeros", "circular", "reflect", "replicate"))
        dilation = dice.choice((1, 2))
        self.one = nn.Conv1d(
            width, dice.choice((3, 5)), 3, padding=dilation, dilation=dilation, padding_mode=mode
        )
        self.two = nn.Conv2d(self.one.out_channels, width, (1, 1), bias=dice.random() < 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.one(x.transpose(1, 2)))
        return x + self.two(h.unsqueeze(-1)).squeeze(-1).transpose(1, 2)


class RandomLayers(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        self.words = dice.choice((2, 7, 11, 16))
        width = dice.choice((4, 5, 6, 9))
        padding = dice.choice((None, 0, self.words - 1, -1))
        self.table = nn.Embedding(self.words, width, padding_idx=padding)
        self.places = nn.Embedding(LENGTH, width) if dice.random() < 0.5 else None
        self.second = None
        if dice.random() < 0.4:
            self.second = nn.Embedding(self.words, width, padding_idx=dice.choice((None, 1)))
            if dice.random() < 0.6:
                self.second.weight = self.table.weight
        self.looked_up_again = dice.random() < 0.3
        kinds = (Turned, Products, Convolved)
        self.blocks = nn.ModuleList(dice.choice(kinds)(dice, width) for _ in range(dice.randint(1, 3)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.words, bias=dice.random() < 0.3)
        if dice.random() < 0.6:
            self.head.weight = self.table.weight
        self.heads = dice.choice((1, 1, 2))
        for name, p in self.named_parameters():
            if dice.random() < (0.25 if name.startswith(("table", "second", "places")) else 0.1):
                p.requires_grad_(False)
        self.norm.weight.requires_grad_(True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens % self.words
        x = self.table(tokens)
        if self.looked_up_again:
            x = x + self.table(tokens.flip(1))
        if self.second is not None:
            x = x + 0.5 * self.second((tokens + 1) % self.words)
        if self.places is not None:
            x = x + self.places(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        y = self.head(self.norm(x))
        return y if self.heads == 1 else y + self.head(torch.tanh(x))


def batch(samples: int) -> Batch:
    tokens = torch.randint(16, (samples, LENGTH))
    return (tokens,), torch.randint(2, (samples, LENGTH))
