"""Decoders whose training with tensor and pipeline parallelism was published, without weights, and their styles."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MEGATRON = {
    "token": "rowwise",
    "blocks.*.attention.qkv": "colwise",
    "blocks.*.attention.out": "rowwise",
    "blocks.*.mlp.up": "colwise",
    "blocks.*.mlp.down": "rowwise",
    "head": "colwise",
}
LLAMA = {
    "token": "rowwise",
    "blocks.*.norm_1": "sequence",
    "blocks.*.norm_2": "sequence",
    "norm": "sequence",
    "blocks.*.attention.query": "colwise",
    "blocks.*.attention.key": "colwise",
    "blocks.*.attention.value": "colwise",
    "blocks.*.attention.out": "rowwise",
    "blocks.*.mlp.gate": "colwise",
    "blocks.*.mlp.up": "colwise",
    "blocks.*.mlp.down": "rowwise",
    "head": "colwise",
}


class Attention(nn.Module):
    """Of 2021: two products and a softmax between them, which is one kernel with mask and scale."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class GroupedAttention(nn.Module):
    """Llama's: eight heads of keys and values, and a fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, inner = heads, width // heads * 8
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (p(x).unflatten(-1, (8, -1)).transpose(1, 2) for p in (self.key, self.value))
        k, v = (t.repeat_interleave(self.heads // 8, 1) for t in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int | None) -> None:
        super().__init__()
        norm = nn.LayerNorm if inner is None else nn.RMSNorm
        self.norm_1, self.norm_2 = norm(width), norm(width)
        self.attention = Attention(width, heads) if inner is None else GroupedAttention(width, heads)
        self.mlp = MLP(width) if inner is None else GatedMLP(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Decoder(nn.Module):
    """With a head of its own: Megatron's is the embedding, whose gradients its first and last stage sum up."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, inner: int | None) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if inner is None else nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


INNER = {4096: 14336, 8192: 28672, 16384: 53248}  # Llama 3.1's, by width


def make(
    layers: int, width: int, heads: int, vocabulary: int, sequence: int, llama: bool
) -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """The model on the meta device, and a sample of two sequences."""
    with torch.device("meta"):
        tokens = torch.zeros(2, sequence, dtype=torch.long)
        model = Decoder(layers, width, heads, vocabulary, INNER[width] if llama else None)
    return model, (tokens, tokens.clone())
