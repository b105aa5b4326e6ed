"""The GPT of the runtime's benchmark: 8 layers x 512, 25.8 million parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, TOKENS, BATCH = 512, 512, 8, 8, 64, 2


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(TOKENS, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def make_gpt() -> tuple[GPT, list[nn.Module]]:
    """The model, equal weights on every call, and its blocks."""
    torch.manual_seed(0)
    model = GPT()
    return model, list(model.blocks)


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
