"""Activations of a lower precision, whatever order the operators have in it."""

from __future__ import annotations

import torch
from torch import nn

import osdp
from osdp.planning.low_precision import with_low_activations


class SavesEarlierInFloat32(nn.Module):
    """What it computes by itself is an operator, which comes earlier where parameters are float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.dtype == torch.float32:
            x = torch.tanh(x)
        return self.last(torch.tanh(self.second(x)))


class SavesOnlyInBfloat16(SavesEarlierInFloat32):
    """An operator that the description in float32 does not have: `inner` saves what it casts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.inner.forward = self.cast  # type: ignore[method-assign]

    def cast(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) if x.dtype == torch.bfloat16 else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.inner(x))


def saved(description: osdp.ModelDescription) -> int:
    return sum(o.saved_bytes_per_sample for o in description.operators)


def check(model: nn.Module) -> None:
    x = torch.randn(4, 32)
    description = osdp.describe(model, x)
    low = with_low_activations(description, model, (x,), "bf16")
    really = osdp.describe(model.bfloat16(), x.bfloat16())
    assert [o.name for o in low.operators] == [o.name for o in description.operators]
    assert [o.name for o in really.operators] != [o.name for o in description.operators]
    assert saved(low) == saved(really) < saved(description)
    assert all(
        o.parameters == p.parameters for o, p in zip(low.operators, description.operators, strict=True)
    )


def test_operators_are_matched_by_name() -> None:
    check(SavesEarlierInFloat32())


def test_what_only_the_lower_precision_saves_counts_for_the_module_around_it() -> None:
    check(SavesOnlyInBfloat16())
