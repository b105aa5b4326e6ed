"""Kernels of a forward and its backward: counted flops and bytes, at every batch, and what they cost."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import osdp
from osdp.description.model_description import Kernel
from osdp.hardware.hardware import KernelRates
from osdp.planning.core_inputs import ComputeTime, compute_s
from osdp.planning.kernel_times import kernels_s

RATES = KernelRates(memory_bytes_per_s=1e12, launch_s=1e-6, half_rate_dimension=100.0, attention_share=0.5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p.unflatten(-1, (2, 32)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sum()


def lists(description: osdp.ModelDescription, name: str) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    o = next(o for o in description.operators if o.name == name)
    return description.kernels[o.forward_kernels], description.kernels[o.backward_kernels]


def test_a_linear_reads_and_writes_what_its_products_do() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    forward, backward = lists(osdp.describe(model, torch.zeros(4, 64)), "2")
    flops = 2 * 128 * 32
    assert forward == (Kernel("product", 1, flops, 0, 4 * (128 + 32), 4 * (128 * 32 + 32), 32, 1),)
    products = [k for k in backward if k.kind == "product"]
    assert sum(k.count for k in products) == 2 and all(k.flops_per_sample == flops for k in products)
    assert all((k.bytes_per_sample, k.bytes_fixed) == (4 * (128 + 32), 4 * 128 * 32) for k in products)


def test_causal_attention_counts_half_of_its_square_and_two_and_a_half_forwards_in_backward() -> None:
    forward, backward = lists(osdp.describe(Attention(), torch.zeros(2, 48, 64)), "")
    (one,) = [k for k in forward if k.kind == "attention"]
    (two,) = [k for k in backward if k.kind == "attention"]
    assert (
        one.flops_per_sample == 4 * 2 * 48 * 48 * 32 // 2
        and two.flops_per_sample == 2.5 * one.flops_per_sample
    )


def test_equal_blocks_share_their_lists_and_bf16_moves_half() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(6)))
    x = torch.zeros(4, 64)
    plain, low = osdp.describe(model, x), osdp.describe(model, x, precision="bf16")
    assert lists(plain, "1.0") == lists(plain, "4.0") and len(plain.kernels) < 8
    assert lists(low, "2.0")[0][0].bytes_per_sample * 2 == lists(plain, "2.0")[0][0].bytes_per_sample
    assert osdp.ModelDescription.loads(low.dumps()) == low


def test_a_kernel_takes_the_larger_of_flops_and_bytes_and_a_launch() -> None:
    rate = 1e13
    assert kernels_s([Kernel("other", 3, 0, 0, 10**6, 0)], RATES, rate, 4) == pytest.approx(3 * (4e-6 + 1e-6))
    wide = Kernel("product", 1, 10**9, 0, 1, 0, 400, 1000)
    assert kernels_s([wide], RATES, rate, 2) == pytest.approx(2e9 / (rate * 0.8) + 1e-6)
    thin = dataclasses.replace(wide, dimension_per_sample=10)  # 20 rows
    assert kernels_s([thin], RATES, rate, 2) == pytest.approx(2e9 / (rate * 20 / 120) + 1e-6)
    assert kernels_s([Kernel("attention", 1, 10**9, 0, 1, 0)], RATES, rate, 1) == pytest.approx(2e-4 + 1e-6)


def test_times_are_exact_at_a_batch_and_the_next_and_below_the_kernels_at_others() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    description = osdp.describe(model, torch.zeros(4, 64))
    machine = osdp.Hardware.load("a100-8")
    rates, flops = machine.kernel_rates, machine.flops_per_s
    assert rates is not None
    forward, backward = lists(description, "2")
    last = description.operators[-1]
    for batch in (1, 4, 1000):
        time = compute_s(last, machine, "float32", description, batch)
        for other in (1, 2, 3, 4, 5, 40, 128, 1000, 1001, 9000):
            once = kernels_s(forward, rates, flops, other)
            both = once + kernels_s(backward, rates, flops, other)
            assert time.step(other) <= both * (1 + 1e-12) and time.forward(other) <= once * (1 + 1e-12)
            if other in (batch, batch + 1):
                assert (time.step(other), time.forward(other)) == pytest.approx((both, once))
    assert compute_s(last, machine, "float32", description) == compute_s(
        last, machine, "float32", description, 4
    )
    measured = dataclasses.replace(
        machine, gamma_s={"2": 3e-5}, gamma_fixed_s={"2": 1e-5}, recompute_s={"2": 1e-5}
    )
    assert compute_s(last, measured, "float32", description, 4) == ComputeTime(3e-5, 1e-5, 1e-5)
    unpriced = dataclasses.replace(machine, kernel_rates=None)
    assert compute_s(last, unpriced, "float32", description, 4).per_sample == pytest.approx(
        3 * 2 * 128 * 32 / flops
    )
