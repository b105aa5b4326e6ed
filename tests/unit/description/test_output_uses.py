"""What forward does with a linear's outputs: cut in parts, or viewed in groups."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import osdp
from osdp.description.output_uses import groups_of


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.last = (nn.Linear(8, 8) for _ in range(4))
        self.qkv, self.whole, self.sliced = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, -1, 2)
        k = self.k(x).unflatten(-1, (4, -1))
        v = self.v(x[:, :1]).reshape(batch, 1, 2, 4).sum((2, 3))
        x = sum(self.qkv(x).chunk(3, -1)) + self.whole(x).reshape(batch, length, 3, 2, -1).sum((2, 3)).repeat(
            1, 1, 2
        )
        sliced = self.sliced(x)
        return self.last((q * k).flatten(-2) + v.unsqueeze(-1) + x + sliced[..., :8] * sliced[..., 8:])[:, -1]


def test_uses_are_found_in_every_block_of_a_row():
    layers = nn.ModuleList(Attends() for _ in range(6))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x).unsqueeze(1)
            return x

    described = osdp.describe(Model(), torch.randn(2, 3, 8))
    for block in range(6):
        found = {
            o.name.rpartition(".")[2]: (o.output_cut, o.output_groups)
            for o in described.operators
            if o.name.startswith(f"layers.{block}.") and o.parameters
        }
        assert found == {
            "q": (False, 4),
            "k": (False, 4),
            "v": (False, 2),
            "last": (False, 0),  # the last token, with all outputs
            "qkv": (True, 0),
            "whole": (False, 3),
            "sliced": (True, 0),
        }


@pytest.mark.parametrize(
    ("before", "after", "groups"),
    [
        ((2, 3, 8), (2, 3, 4, -1), 4),
        ((2, 3, 8), (2, 3, -1, 2), 4),
        ((2, 3, 8), (6, 8), 0),
        ((2, 3, 8), (2, 3, 1, 8), 0),
        ((1, 1, 8), (1, 1, 2, 4), 2),
        ((2, 3, 24), (2, 3, 3, 4, 2), 3),
        ((2, 8), (16,), 0),
    ],
)
def test_groups(before, after, groups):
    assert groups_of(before, after) == groups
