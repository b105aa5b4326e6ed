"""What kernels of a CPU and of an accelerator hold differently."""

import dataclasses
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import osdp
from osdp.errors import DescribeError
from osdp.hardware.hardware import Hardware

HEADS, WIDTH, LENGTH = 4, 64, 128


class Attention(nn.Module):
    def __init__(self, dropout: float, by_name: bool = True) -> None:
        super().__init__()
        self.qkv, self.dropout, self.by_name = nn.Linear(WIDTH, 3 * WIDTH), dropout, by_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if self.by_name:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
        else:
            out = F.scaled_dot_product_attention(q, k, v, None, self.dropout, True)
        return out.transpose(1, 2).reshape(x.shape).sum()


def saved(description: osdp.ModelDescription) -> int:
    return sum(o.saved_bytes_per_sample for o in description.operators)


def described(module: nn.Module, *sample: torch.Tensor, **options: Any) -> osdp.ModelDescription:
    return osdp.describe(module, *sample, **options)


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dropout_of_attention_saves_no_scores_on_an_accelerator(by_name: bool, precision: str) -> None:
    x = torch.zeros(2, LENGTH, WIDTH)
    without = described(Attention(0.0), x, precision=precision)
    dropped = Attention(0.1, by_name)
    on_cpu = described(dropped, x, precision=precision)
    on_gpu = described(dropped, x, precision=precision, device="cuda")
    assert (without.device, on_cpu.device, on_gpu.device) == ("", "cpu", "accelerator")
    assert saved(on_gpu) == saved(without)
    assert on_gpu.kernels == without.kernels
    scores = HEADS * LENGTH * LENGTH * (2 if precision == "bf16" else 4)
    assert saved(on_cpu) >= saved(without) + scores


class Biased(nn.Module):
    """Attention in windows, with a bias by position."""

    def __init__(self, length: int, trained: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS, length, length), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, self.bias[None]).sum()


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        k, v = self.kv(x).view(*x.shape[:2], 2, HEADS // 2, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum()


def test_grouped_queries_compute_what_all_query_heads_do() -> None:
    found = described(Grouped(), torch.zeros(2, LENGTH, WIDTH))
    flops = sum(k.flops_per_sample for kernels in found.kernels for k in kernels if k.kind == "attention")
    forward = 2 * LENGTH * LENGTH * WIDTH  # both products of the half that runs
    assert flops == forward + forward * 5 // 2


@pytest.mark.parametrize("trained", [True, False])
def test_a_bias_that_no_fused_kernel_of_an_accelerator_takes(trained: bool) -> None:
    """As T5 makes it: stored by position, not by key. A CPU's fused kernel takes it if it is not trained."""

    class Permuted(Biased):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            bias = self.bias.transpose(0, 2).contiguous().transpose(0, 2)
            return F.scaled_dot_product_attention(q, k, v, bias[None]).sum()

    x = torch.zeros(8, 64, WIDTH)
    on_cpu, on_gpu = (described(Permuted(64, trained), x, device=d) for d in ("cpu", "cuda"))
    if trained:
        assert on_gpu == on_cpu
    else:
        assert (on_cpu.device, on_gpu.device) == ("cpu", "accelerator")
        scores = HEADS * 64 * 64 * 4
        assert saved(on_gpu) > saved(on_cpu) + scores // 2  # the scores, without what the fused kernel saves


@pytest.mark.parametrize("length", [49, 64])
def test_a_trained_bias_of_attention_saves_no_scores_on_an_accelerator(length: int) -> None:
    x = torch.zeros(8, length, WIDTH)
    frozen = described(Biased(length, trained=False), x)
    model = Biased(length, trained=True)
    on_cpu, on_gpu = (described(model, x, device=d) for d in ("cpu", "cuda"))
    assert (frozen.device, on_cpu.device, on_gpu.device) == ("", "cpu", "accelerator")
    scores = HEADS * length * length * 4
    assert saved(on_cpu) > saved(on_gpu) + scores // 2  # the scores, without what the fused kernel saves
    assert saved(on_gpu) < saved(frozen) + scores // 2
    assert [o.name for o in on_gpu.operators] == [
        o.name for o in on_cpu.operators
    ]  # the bias is read, and has a gradient
    kinds = {k.kind for kernels in on_gpu.kernels for k in kernels}
    assert "attention" in kinds


def test_the_searched_machine_says_which_kernels() -> None:
    x = torch.zeros(2, LENGTH, WIDTH)
    dropped = Attention(0.1)
    limits: dict[str, Any] = {"memory": "2GiB", "world_size": 2, "batch_size": 2}
    on_gpu = osdp.search(dropped, (x,), hardware="h100-8", **limits)
    described_first = osdp.search(described(dropped, x, device="cuda"), hardware="h100-8", **limits)
    assert on_gpu.predicted == described_first.predicted
    with pytest.warns(UserWarning, match="device='cuda'"):
        osdp.search(described(dropped, x), hardware="h100-8", **limits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        osdp.search(described(Attention(0.0), x), hardware="h100-8", **limits)


def test_convolutions_of_an_accelerator_have_no_copies_of_onednn() -> None:
    model, image = nn.Conv2d(8, 16, 3), torch.zeros(2, 8, 32, 32)
    on_cpu, on_gpu = (described(model, image, device=d).operators[0] for d in ("cpu", "cuda"))
    assert on_gpu.work_bytes_per_sample < on_cpu.work_bytes_per_sample
    assert on_gpu.saved_bytes_per_sample == on_cpu.saved_bytes_per_sample


def test_an_lstm_of_an_accelerator_packs_its_weights() -> None:
    model, sequence = nn.LSTM(32, 64, 2), torch.zeros(8, 2, 32)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    on_cpu, on_gpu = (described(model, sequence, device=d).operators[0] for d in ("cpu", "cuda"))
    assert on_gpu.saved_bytes_fixed >= on_cpu.saved_bytes_fixed + weights - 4096


def test_convolutions_in_16_bits_are_converted_unless_channels_are_last() -> None:
    image = torch.zeros(2, 8, 32, 32)
    model = nn.Conv2d(8, 16, 3)

    def moved(sample: torch.Tensor, precision: str) -> int:
        found = described(model, sample, precision=precision, device="cuda")
        return sum(
            k.bytes_per_sample
            for k in found.kernels[found.operators[0].forward_kernels]
            if k.kind == "product"
        )

    last = image.to(memory_format=torch.channels_last)
    assert moved(image, "fp32") == moved(last, "fp32")
    assert moved(image, "bf16") > 2 * moved(last, "bf16")


@pytest.mark.parametrize("device", ["meta", "gpu", 3])
def test_a_device_that_trains_nothing_is_refused(device: Any) -> None:
    with pytest.raises(DescribeError, match="device"):
        described(nn.Linear(2, 2), torch.zeros(1, 2), device=device)


def test_machines_of_cpus_take_a_cpus_kernels() -> None:
    x = torch.zeros(2, LENGTH, WIDTH)
    machine = Hardware.load("rtx-titan-8")
    on_cpu = dataclasses.replace(machine, device="cpu")
    plans = [
        osdp.search(Attention(0.1), (x,), memory="8GiB", world_size=2, batch_size=2, hardware=m)
        for m in (on_cpu, machine)
    ]
    peaks = [p.predicted.peak_memory_bytes for p in plans if p.predicted]
    assert peaks[0] > peaks[1]
