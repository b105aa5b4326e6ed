"""The paper's models (minGPT, as the authors changed it), without weights, and their descriptions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import osdp
from osdp.description.model_description import ModelDescription

DROPOUT = 0.1

# Styles of torch's tensor parallelism, which cut each block as Megatron does.
STYLES = {
    "blocks.*.attn.key": "colwise",
    "blocks.*.attn.query": "colwise",
    "blocks.*.attn.value": "colwise",
    "blocks.*.attn.proj": "rowwise",
    "blocks.*.mlp.0": "colwise",
    "blocks.*.mlp.2": "rowwise",
}


@dataclass(frozen=True)
class Text:
    """What a model is trained on: `sequences` of `tokens` are one sample, the unit in which batches are counted."""

    name: str
    vocabulary: int
    tokens: int
    sequences: int


# train_gpt2_osdp.py takes both from its addition data set (two digits) and never uses --vocab_size; its batch is
# --train_batch_size x 96.
ADDITION = Text("addition", 10, 6, 96)
GPT2 = Text("GPT-2's words", 50257, 512, 1)


class CausalSelfAttention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attn_drop, self.resid_drop = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(tokens, tokens))[None, None])
        self.heads = width // 64

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = (
            m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.key, self.query, self.value)
        )
        attention = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        attention = attention.masked_fill(self.mask == 0, float("-inf"))
        attention = self.attn_drop(F.softmax(attention, dim=-1))
        return self.resid_drop(self.proj((attention @ v).transpose(1, 2).contiguous().flatten(2)))


class Block(nn.Module):
    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, tokens)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """One block per width; neighbours of different widths are joined by a linear layer (the authors' code has none)."""

    positions: Tensor

    def __init__(self, widths: tuple[int, ...], text: Text) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(text.vocabulary, widths[0])
        # A module of its own, where minGPT has a parameter: a pipeline cannot be cut behind one that the whole model reads.
        self.pos_emb = nn.Embedding(text.tokens, widths[0])
        self.register_buffer("positions", torch.arange(text.tokens))
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block(width, text.tokens) for width in widths)
        changes = [i for i in range(1, len(widths)) if widths[i] != widths[i - 1]]
        self.joins = nn.ModuleDict({str(i): nn.Linear(widths[i - 1], widths[i]) for i in changes})
        self.ln_f = nn.LayerNorm(widths[-1])
        self.head = nn.Linear(widths[-1], text.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Of shape (samples, sequences, tokens)."""
        x = self.drop(self.tok_emb(tokens.flatten(0, 1)) + self.pos_emb(self.positions))
        for i, block in enumerate(self.blocks):
            if str(i) in self.joins:
                x = self.joins[str(i)](x)
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def _parts(layers: int, *widths: int) -> tuple[int, ...]:
    """As many blocks of each width, one width after the other."""
    return tuple(width for width in widths for _ in range(layers // len(widths)))


# The paper's table of models: layers, operators, widths and parameters of each family.
TABLE = {
    "N&D": ("48-96", "98-194", "1024-1536", "1.3-2.9 B"),
    "W&S": ("2-4", "6-10", "6144-12288", "1.7-4 B"),
    "I&C": ("24-96", "50-194", "1024-4096", "0.9-2.3 B"),
}

# Within that table. The paper does not list its models one by one; 48 x 1,536 is the one of the authors' scripts.
MODELS = {
    "N&D 48x1536": _parts(48, 1536),
    "N&D 72x1280": _parts(72, 1280),
    "N&D 96x1536": _parts(96, 1536),
    "W&S 4x6144": _parts(4, 6144),
    "W&S 3x8192": _parts(3, 8192),
    "W&S 4x8192": _parts(4, 8192),
    "W&S 2x12288": _parts(2, 12288),
    "I&C 24x1024/2048/4096": _parts(24, 1024, 2048, 4096),
    "I&C 48x1024/2048": _parts(48, 1024, 2048),
    "I&C 96x1024/1536": _parts(96, 1024, 1536),
}


@cache
def description(model: str, text: Text) -> ModelDescription:
    with torch.device("meta"):
        tokens = torch.zeros(1, text.sequences, text.tokens, dtype=torch.long)
        module = GPT(MODELS[model], text)
    return osdp.describe(module, tokens, tokens.clone())


def shapes() -> list[dict[str, Any]]:
    """Of each model what the paper's table says of its family. Operators are modules with parameters; the paper counts two a
    block, attention and MLP, and two around them."""
    found = []
    for name, widths in MODELS.items():
        with torch.device("meta"):
            module = GPT(widths, ADDITION)
        own = [m for m in module.modules() if m._parameters]
        numel = sum(p.numel() for p in module.parameters())
        found.append(
            {
                "model": name,
                "layers": len(widths),
                "operators": len(own),
                "widths": sorted(set(widths)),
                "parameters": numel,
            }
        )
    return found
