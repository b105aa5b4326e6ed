"""Activations of a lower precision, whatever order the operators have in it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import osdp


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


def check(model: nn.Module, cast: int) -> None:
    """`cast`: bytes per sample of what the sharded model makes of its input, and saves."""
    x = torch.randn(4, 32)
    description = osdp.describe(model, x)
    low = osdp.describe(model, x, precision="bf16")
    really = osdp.describe(model.bfloat16(), x.bfloat16())
    assert [o.name for o in low.operators] == [o.name for o in description.operators]
    assert [o.name for o in really.operators] != [o.name for o in description.operators]
    assert saved(low) - cast == saved(really) < saved(description) - cast
    assert all(
        o.parameters == p.parameters for o, p in zip(low.operators, description.operators, strict=True)
    )


def test_operators_are_matched_by_name() -> None:
    check(SavesEarlierInFloat32(), cast=2 * 32)


def needed(description: osdp.ModelDescription) -> dict[str, int]:
    """By operator with parameters: bytes per sample of activations while its backward runs."""
    held, found = 0, {}
    for o in description.operators:
        held += o.saved_bytes_per_sample
        if o.parameters:
            found[o.name] = held + o.work_bytes_per_sample
    return found


def test_work_is_beyond_what_is_saved_before_it_in_the_order_of_the_description() -> None:
    model = SavesEarlierInFloat32()
    x = torch.randn(4, 32)
    low = osdp.describe(model, x, precision="bf16")
    really = osdp.describe(model.bfloat16(), x.bfloat16())
    cast = 2 * 32  # of the input
    assert needed(low) == {name: bytes_ + cast for name, bytes_ in needed(really).items()}


def test_what_only_the_lower_precision_saves_counts_for_the_module_around_it() -> None:
    check(SavesOnlyInBfloat16(), cast=0)  # tanh saves its result, not what it was given


class AsksForFloat32(nn.Linear):
    """Its forward fails in a lower precision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.weight.dtype == torch.float32
        return super().forward(x)


SAMPLE = (torch.ones(4, 32),)
ASKED = {"memory": "1GiB", "world_size": 2, "batch_size": 2}


def test_a_description_is_searched_in_its_precision_alone() -> None:
    model = SavesEarlierInFloat32()
    plain, low = osdp.describe(model, *SAMPLE), osdp.describe(model, *SAMPLE, precision="bf16")
    assert (plain.precision, low.precision) == ("fp32", "bf16")
    for description, precision in ((plain, "bf16"), (low, "fp32"), (low, "fp16"), (low, "tf32")):
        with pytest.raises(
            osdp.InvalidProblemError, match=rf"osdp.describe\(model, sample, precision='{precision}'\)"
        ):
            osdp.search(description, precision=precision, **ASKED)
    for description, precision in ((plain, "tf32"), (low, "bf16"), (low, "bf16-reduce-fp32")):
        assert osdp.search(description, precision=precision, **ASKED).precision == precision
    assert osdp.ModelDescription.loads(low.dumps()) == low
    assert osdp.search(model, SAMPLE, precision="bf16", **ASKED).description == low


def test_a_file_that_does_not_say_its_precision_warns() -> None:
    old = dataclasses.replace(osdp.describe(SavesEarlierInFloat32(), *SAMPLE), precision="")
    osdp.search(old, **ASKED)
    with pytest.warns(UserWarning, match="which precision it was made"):
        osdp.search(old, precision="bf16", **ASKED)


def test_a_model_that_cannot_run_in_the_precision_says_so() -> None:
    model = nn.Sequential(AsksForFloat32(32, 32), nn.Linear(32, 32))
    with pytest.raises(osdp.DescribeError, match="cannot be described in bf16"):
        osdp.describe(model, *SAMPLE, precision="bf16")
    with pytest.warns(UserWarning, match="cannot be described in bf16"):
        plan = osdp.search(model, SAMPLE, precision="bf16", **ASKED)
    assert plan.description == osdp.describe(model, *SAMPLE)


def test_a_precision_that_does_not_exist_is_refused() -> None:
    with pytest.raises(osdp.InvalidProblemError, match="precision must be one of"):
        osdp.describe(SavesEarlierInFloat32(), *SAMPLE, precision="int1")


class Branches(nn.Module):
    """Two blocks read the input; the first one's output is read after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 16)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        return self.blocks[1](x).sum(1) + first.sum(1)


def test_an_input_that_blocks_share_is_held_whatever_is_recomputed() -> None:
    x = torch.randn(6, 8)
    full, low = osdp.describe(Branches(), x), osdp.describe(Branches(), x, precision="bf16")
    assert full.input_bytes_per_sample == 8 * 4
    assert low.input_bytes_per_sample == 8 * 4 + 8 * 2
    assert sum(o.saved_bytes_per_sample for o in low.operators if o.name.endswith("0")) == 0


def test_values_that_are_read_later_are_work_of_the_forward() -> None:
    x = torch.randn(6, 8)
    for precision, size in (("fp32", 4), ("bf16", 2)):
        description = osdp.describe(Branches(), x, precision=precision)
        work = {o.name: o.forward_work_bytes_per_sample for o in description.operators}
        held = size  # the model's output, which counts in every phase
        assert work["blocks.0.2"] == 16 * size - held
        assert work["blocks.1.2"] == (16 + 16) * size - held  # the first block's output, and its own
