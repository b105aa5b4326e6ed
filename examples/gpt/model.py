"""A GPT as anyone would write it: nothing in it knows that it will be sharded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.settings import Settings


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Characters [batch, length] -> logits [batch, length, vocabulary], or with targets the mean loss."""

    def __init__(self, settings: Settings, vocabulary: int) -> None:
        super().__init__()
        width = settings.width
        self.context = settings.context
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(settings.context, width)
        self.blocks = nn.ModuleList(Block(width, settings.heads) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (2 * settings.layers) ** -0.5 if name.endswith("proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, characters: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.token(characters) + self.position(
            torch.arange(characters.shape[1], device=characters.device)
        )
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def generate(
    model: nn.Module, prompt: Tensor, length: int, context: int, temperature: float = 0.7, seed: int = 0
) -> Tensor:
    """`prompt` [1, n] continued by `length` characters, one at a time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(length):
        logits = model(prompt[:, -context:])[:, -1] / temperature
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        prompt = torch.cat([prompt, drawn], dim=1)
    return prompt
