"""Prices of kernels where nobody measured: thin slices, short sequences, descriptions without kernels."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from torch import nn

import osdp
from osdp import _search
from osdp.description.model_description import Kernel, ModelDescription
from osdp.hardware.hardware import Hardware
from osdp.plan.searched import Searched
from osdp.planning.core_inputs import SLICE_OVERHEAD_S, make_model
from osdp.planning.kernel_times import kernels_s, slices_s
from osdp.planning.search_problem import SearchProblem

RATE = Hardware.load("h100-8").flops_per_s_by_dtype["bfloat16"]


def linear(inputs: int, outputs: int, rows: int) -> ModelDescription:
    with torch.device("meta"):
        model, sample = nn.Sequential(nn.Linear(inputs, outputs, bias=False)), torch.zeros(2, rows, inputs)
    return osdp.describe(model, sample, precision="bf16")


def slower(description: ModelDescription, machine: str = "h100-8", batch: int = 2) -> dict[int, float]:
    operator = next(o for o in description.operators if o.split_shape is not None)
    return dict(slices_s(operator, description, Hardware.load(machine), RATE, batch, 2))


def test_thin_slices_are_slow_and_thick_ones_cost_their_launches() -> None:
    found = slower(linear(4096, 4096, 2048))
    assert set(found) == set(range(2, 65))  # of rows that differ by one, too
    found = {n: found[n] for n in (2, 4, 8, 16, 32, 64)}
    assert list(found.values()) == sorted(found.values())  # more slices are slower
    launches = {n: (n - 1) * SLICE_OVERHEAD_S for n in found}
    assert found[2] < 10 * launches[2]
    assert found[64] > 3 * launches[64]  # of 64 columns
    # Twice as many rows take about twice as long beyond the launches: thinness, not a constant.
    assert found[64] < slower(linear(4096, 4096, 4096))[64] < 2.5 * found[64]


def test_slices_are_cut_along_outputs_or_else_inputs() -> None:
    assert set(slower(linear(6, 35, 8))) == set(range(2, 36))  # no more than there are outputs
    wide, narrow = slower(linear(4096, 256, 2048)), slower(linear(256, 4096, 2048))
    assert wide[2] > narrow[2]  # of 128 columns, and of 2,048


def in_slices_ps(description: ModelDescription, hardware: Hardware) -> int:
    """What the weight in 64 slices adds to a micro-batch, beside computation."""
    searched = Searched(("FULL_SHARD",), (64,), ("none",))
    model = make_model(description, hardware, "bf16")
    request = SearchProblem(description, hardware, 8, "adamw", "bf16", "osdp", False, searched).request()
    at = next(i for i, o in enumerate(description.operators) if o.split_shape is not None)
    return max(
        c.communication_ps
        for c in _search.candidates(model, request, at, "none")
        if c.choice.granularity == 64
    )


def test_measured_machines_keep_a_launch_for_each_slice() -> None:
    description, h100 = linear(4096, 4096, 2048), Hardware.load("h100-8")
    name = next(o.name for o in description.operators if o.split_shape is not None)
    launches_ps = round(63 * SLICE_OVERHEAD_S * 1e12)
    thin_ps = round(slower(description)[64] * 1e12)
    measured = in_slices_ps(description, dataclasses.replace(h100, gamma_s={name: 1e-3}))
    assert in_slices_ps(description, h100) - measured == pytest.approx(thin_ps - launches_ps, abs=2)
    assert in_slices_ps(description, dataclasses.replace(h100, kernel_rates=None)) == measured


def test_attention_is_slower_in_short_sequences() -> None:
    rates = Hardware.load("h100-8").kernel_rates
    assert rates is not None

    def rate(length: int) -> float:
        heads = 32768 // length * 16
        flops, moved = 2 * heads * length * length * 128, 4 * heads * length * 128 * 2
        seconds = kernels_s([Kernel("attention", 1, 0, flops, 0, moved)], rates, RATE, 1)
        return flops / (seconds - rates.launch_s) / RATE

    assert rate(512) < 0.5 * rate(16384) and rate(16384) < rates.attention_share
    assert rate(32768) == pytest.approx(rates.attention_share, rel=0.05)


def test_a_description_without_kernels_says_that_its_times_are_those_of_flops() -> None:
    description = linear(64, 64, 8)
    bare = dataclasses.replace(
        description,
        kernels=(),
        operators=tuple(
            dataclasses.replace(o, forward_kernels=-1, backward_kernels=-1) for o in description.operators
        ),
    )
    asked = {"memory": "8GiB", "world_size": 2, "batch_size": 1, "precision": "bf16"}
    with pytest.warns(UserWarning, match=r"kernels.*osdp\.describe\(model, sample\)"):
        osdp.search(bare, hardware="h100-8", **asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        osdp.search(description, hardware="h100-8", **asked)
        osdp.search(bare, hardware="rtx-titan-8", **asked)


def test_a_search_over_batches_ends_with_the_times_of_its_plans_batch() -> None:
    """A forward takes longer for its first sample than for more of them: what recomputing costs is of the plan's batch."""
    layers = [nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(4)]
    description = osdp.describe(nn.Sequential(*layers), torch.zeros(1, 16, 256), precision="bf16")

    def search(batch_size: int | str) -> osdp.Plan:
        return osdp.search(
            description, memory="1.4GiB", hardware="h100-8", precision="bf16", batch_size=batch_size
        )

    plan = search("auto")
    assert plan.batch_size > 100 and plan.recompute
    assert plan.searched is not None and plan.searched.kernels_batch == plan.batch_size
    given = search(plan.batch_size)
    assert plan.certificate is not None and given.certificate is not None
    # Both are within the gap of the same times.
    assert plan.certificate.step_ps == pytest.approx(given.certificate.step_ps, rel=0.01)
    assert given.certificate.step_bound_ps <= plan.certificate.step_ps
    assert osdp.verify(plan) == ""
