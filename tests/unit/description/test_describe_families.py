"""`describe` on minGPT-like models of the paper's families: narrow and deep, wide and shallow, inconsistent."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import osdp
from tests.unit.description.real_forward import live_bytes, saved_bytes

VOCABULARY = 50


class Attention(nn.Module):
    """As in minGPT: scores are masked by a buffer, with dropout on them and on the output."""

    mask: torch.Tensor

    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(context, context))[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(width, 2)
        )
        scores = (q @ k.transpose(-2, -1)) * k.shape[-1] ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = self.attn_dropout(F.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).contiguous().view(batch, length, width)))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, context, dropout)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(width, 4 * width),
                "c_proj": nn.Linear(4 * width, width),
                "act": nn.GELU(),
                "dropout": nn.Dropout(dropout),
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        m = self.mlp
        return x + m["dropout"](m["c_proj"](m["act"](m["c_fc"](self.ln_2(x)))))


class MinGPT(nn.Module):
    """Layers of the given widths; where the width changes, a linear goes between."""

    def __init__(self, widths: list[int], context: int = 32, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, widths[0]), nn.Embedding(context, widths[0])
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Layer(width, heads, context, dropout) for width in widths)
        self.between = nn.ModuleDict(
            {str(i): nn.Linear(a, b) for i, (a, b) in enumerate(pairwise(widths), 1) if a != b}
        )
        self.ln_f = nn.LayerNorm(widths[-1])
        self.lm_head = nn.Linear(widths[-1], VOCABULARY, bias=False)

    def forward(self, index: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.drop(self.wte(index) + self.wpe(torch.arange(index.shape[1])[None]))
        for i, layer in enumerate(self.h):
            x = layer(self.between[str(i)](x) if str(i) in self.between else x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def elements(widths: list[int], context: int) -> int:
    """Parameters of a MinGPT: 12 w^2 + 13 w of each layer, and what is around them."""
    changes = sum(a * b + b for a, b in pairwise(widths) if a != b)
    around = (VOCABULARY + context) * widths[0] + 2 * widths[-1] + VOCABULARY * widths[-1]
    return sum(12 * w * w + 13 * w for w in widths) + changes + around


FAMILIES = {
    "N&D": [32] * 24,
    "W&S": [384] * 2,
    "I&C": [32] * 4 + [96] * 3 + [32] * 2 + [160] * 3,
}


def tokens(batch: int) -> dict[str, torch.Tensor]:
    index = torch.randint(0, VOCABULARY, (batch, 32))
    return {"index": index, "targets": index.roll(1, 1)}


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_those_of_a_real_forward(family: str) -> None:
    widths = FAMILIES[family]
    model = MinGPT(widths)
    description = osdp.describe(model, **tokens(2))
    assert description.parameter_bytes == 4 * elements(widths, 32)
    assert [b.name for b in description.blocks] == [f"h.{i}" for i in range(len(widths))]
    for batch in (2, 5):
        described = sum(batch * o.saved_bytes_per_sample + o.saved_bytes_fixed for o in description.operators)
        assert described == saved_bytes(model, tokens(batch))
    assert described == pytest.approx(live_bytes(model, tokens(5)), rel=0.01)


@pytest.mark.parametrize(
    "widths", [[1536] * 8, [12288] * 4, [1024] * 2 + [4096] * 2], ids=["N&D", "W&S", "I&C"]
)
def test_the_papers_widths_are_described_without_their_weights(widths: list[int]) -> None:
    with torch.device("meta"):
        model = MinGPT(widths, context=1024, heads=16, dropout=0.0)
    description = osdp.describe(model, torch.zeros(1, 1024).long(), torch.zeros(1, 1024).long())
    assert description.parameter_bytes == 4 * elements(widths, 1024)
    assert all(p.is_meta for p in model.parameters())
    for i, width in enumerate(widths):
        inside = [o for o in description.operators if o.block == f"h.{i}"]
        products = sum(2 * 1024 * o.parameters[0].elements for o in inside if o.kind == "Linear")
        attention = 2 * (2 * 1024 * 1024 * width)
        assert sum(o.flops_per_sample for o in inside) == products + attention
        # Kept of each layer: the inputs of both norms and of the linears, the attention's q, k, v; the scores.
        activations = 4 * 1024 * width * (2 + 4 + 4 + 4 + 3) + 4 * 16 * 1024 * 1024
        assert sum(o.saved_bytes_per_sample for o in inside) == pytest.approx(activations, rel=0.2)
