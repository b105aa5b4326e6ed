"""MixedPrecision and precision names as values; what the planner counts under them."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import osdp
from osdp.base.cast_floats import cast_floats
from osdp.plan.mixed_precision import named_precision, precision_name

BF16 = torch.bfloat16
Named = collections.namedtuple("Named", "a b")


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    i: torch.Tensor


@dataclasses.dataclass
class Output(collections.OrderedDict[str, torch.Tensor]):
    """As those of transformers: its items are its fields."""

    x: torch.Tensor
    i: torch.Tensor

    def __post_init__(self) -> None:
        self.update(x=self.x, i=self.i)

    def __setitem__(self, key: str, value: torch.Tensor) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)

    def __reduce__(self) -> Any:
        return Output, (self.x, self.i)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))


def test_floats_are_cast_in_every_container() -> None:
    x, i = torch.ones(2), torch.ones(2, dtype=torch.long)
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    for value, look in (
        (x, lambda v: [v]),
        ([x, (i, x)], lambda v: [v[0], v[1][1], v[1][0]]),
        ({"x": x, "i": i}, lambda v: [v["x"], v["i"]]),
        (collections.OrderedDict(x=x, i=i), lambda v: [v["x"], v["i"]]),
        (collections.UserDict(x=x, i=i), lambda v: [v["x"], v["i"]]),
        (Named(x, i), lambda v: [v.a, v.b]),
        (Batch(x, i), lambda v: [v.x, v.i]),
        (Output(x, i), lambda v: [v.x, v.i]),
        (Output(x, i), lambda v: [v["x"], v["i"]]),
        (packed, lambda v: [v.data]),
    ):
        cast = cast_floats(value, BF16)
        assert type(cast) is type(value)
        found = [t.dtype for t in look(cast)]
        assert found.count(BF16) >= 1 and set(found) <= {BF16, torch.long}
        assert x.dtype == torch.float32 and all(t.dtype != BF16 for t in look(value))
    assert cast_floats(("a", None, 3), BF16) == ("a", None, 3)


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-reduce-fp32", "fp16-reduce-fp32"])
def test_names_and_policies_agree(name: str) -> None:
    assert precision_name(named_precision(name)) == name
    plan = osdp.search(
        model(), (torch.ones(4, 64),), memory="1GiB", world_size=2, batch_size=4, precision=name
    )
    assert plan.precision == name and osdp.Plan.loads(plan.dumps()) == plan
    assert osdp.verify(plan) == ""
    assert plan.simulate().step_time_s > 0


def test_a_policy_without_a_name_is_not_searched_for() -> None:
    with pytest.raises(osdp.InvalidProblemError, match="float64"):
        precision_name(osdp.MixedPrecision(torch.float64))
    with pytest.raises(osdp.InvalidProblemError, match="bf16-reduce-fp32"):
        osdp.search(model(), (torch.ones(4, 64),), memory="1GiB", world_size=2, precision="half")


def operator(
    precision: str, mode: str, granularity: int | tuple[int, ...] = 1
) -> osdp.plan.plan_fields.OperatorPrediction:
    plan = osdp.search(
        osdp.describe(model(), torch.ones(4, 64), precision=precision),
        memory="1GiB",
        world_size=4,
        batch_size=4,
        precision=precision,
        modes=mode,
        granularity=granularity,
    )
    assert plan.choices["0"].mode == mode and plan.predicted is not None
    return plan.predicted.operators["0"]


def test_bytes_of_the_plan() -> None:
    """A Linear(64, 128): states of 4 bytes; 2 of them gathered; and half the time on the wire."""
    elements = 64 * 128 + 128
    for mode in ("NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"):
        full, low, wide_sums = (operator(p, mode) for p in ("fp32", "bf16", "bf16-reduce-fp32"))
        copies = 2 * elements if mode == "NO_SHARD" else 0
        assert low.state_bytes == wide_sums.state_bytes == full.state_bytes + copies
        assert low.communication_s < wide_sums.communication_s < full.communication_s or mode == "NO_SHARD"
        assert low.communication_s < full.communication_s
        if mode != "NO_SHARD":
            assert full.transient_bytes == wide_sums.transient_bytes == 4 * elements
            assert low.transient_bytes == 2 * elements


def test_activations_are_those_of_the_lower_precision() -> None:
    sample = (torch.ones(4, 64),)
    plans = {
        p: osdp.search(
            model(), sample, memory="1GiB", world_size=2, batch_size=4, precision=p, modes="FULL_SHARD"
        )
        for p in ("fp32", "bf16")
    }
    saved = {
        p: sum(o.saved_bytes_per_sample for o in plan.description.operators) for p, plan in plans.items()
    }
    low = osdp.describe(model().to(BF16), sample[0].to(BF16))
    cast = 64 * BF16.itemsize  # of the input, which the first operator saves
    assert saved["bf16"] == sum(o.saved_bytes_per_sample for o in low.operators) + cast <= 0.6 * saved["fp32"]
    assert {p.dtype for p in plans["bf16"].description.parameters} == {"float32"}
    assert plans["bf16"].predicted.peak_memory_bytes < plans["fp32"].predicted.peak_memory_bytes
