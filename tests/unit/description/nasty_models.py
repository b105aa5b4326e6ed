"""Small models with the habits that make describing hard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """With a position parameter of the root's own and, if `tied`, one weight for embedding and head."""

    def __init__(
        self,
        width: int = 32,
        layers: int = 2,
        vocabulary: int = 50,
        context: int = 16,
        dropout: float = 0.0,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.tokens(index) + self.positions[: index.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.conv(image))).mean(dim=(2, 3)))


class ReadByParent(nn.Module):
    """Uses a child's weight without calling the child, and hands a view of another to a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.both = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, self.inner.weight, self.inner.bias)
        return self.both(x) @ self.both.weight.t()


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = ReadByParent()
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.part(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(torch.relu(self.again(torch.relu(self.first(x)))))


class Scaled(nn.Module):
    """A zero-dimensional parameter, a layer without effect, an unused branch and half-used parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.skip = nn.Identity()
        self.branches = nn.ModuleDict(
            {"left": nn.Linear(4, 4), "right": nn.Sequential(nn.Linear(4, 4), nn.ReLU())}
        )
        self.unused = nn.Linear(4, 4)
        self.pair = Pair()

    def forward(self, x: torch.Tensor, left: bool = True) -> torch.Tensor:
        return self.pair(self.branches["left" if left else "right"](self.skip(x)) * self.scale)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.ones(4))
        self.spare = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.used


@dataclass
class Output:
    logits: torch.Tensor
    extra: dict[str, list[torch.Tensor]]


class Structured(nn.Module):
    """Nested inputs, a dataclass as output, a plain tensor attribute, a branch on an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("step", torch.tensor(3))
        self.table = torch.arange(4.0)

    def forward(self, batch: dict[str, list[torch.Tensor]], *, bias: torch.Tensor) -> Output:
        x = batch["x"][0] + self.table
        if self.step > 2:
            x = self.layer(x)
        return Output(x + bias, {"all": [x]})
