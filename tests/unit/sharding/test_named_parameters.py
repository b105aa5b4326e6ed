"""Parameters that a forward's code names, from its source or, without one, from its names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from osdp.sharding.forward_methods import named_in_forward

FORWARD = """
def forward(self, x):
    def inside():
        return [self.head.weight for _ in range(2)]
    with torch.no_grad():
        y = self.other(x)
    return self.body(x) @ inside()[0].t() + y + self.scale

def other(self, x):
    return x * self.norm.weight.sum()
"""


def model_of(methods: dict[str, Any]) -> nn.Module:
    model = type("Model", (nn.Module,), {name: methods[name] for name in ("forward", "other")})()
    for name in ("head", "body"):
        setattr(model, name, nn.Linear(2, 2))
    model.norm, model.unused = nn.LayerNorm(2), nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.ones(2))
    return model


class Written(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inside() -> list[torch.Tensor]:
            return [self.head.weight for _ in range(2)]

        with torch.no_grad():
            y = self.other(x)
        return self.body(x) @ inside()[0].t() + y + self.scale

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.norm.weight.sum()


@pytest.mark.parametrize("source", [True, False])
def test_what_a_forward_names(source: bool) -> None:
    written: dict[str, Any] = {"torch": torch}
    exec(FORWARD, written)
    model = model_of(dict(vars(Written)) if source else written)
    named = {id(p) for p in named_in_forward(model)}
    found = {name for name, p in model.named_parameters() if id(p) in named}
    wanted = {"head.weight", "norm.weight", "scale"}
    # Without a source "head" and "weight" are two names among others, and body is called.
    assert found == wanted if source else wanted - {"norm.weight"} <= found <= wanted | {"body.weight"}
