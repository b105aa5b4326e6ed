"""Memory of a backward that no tensor of a trace shows, beside torch's own allocation events."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import osdp
from osdp.description import gradient_sums
from osdp.description.model_description import ModelDescription
from tests.unit.allocations import peak_bytes


def described_bytes(description: ModelDescription, batch: int) -> int:
    """The largest of the operators' moments."""
    until = most = batch * description.output_bytes_per_sample
    for o in description.operators:
        until += batch * o.saved_bytes_per_sample + o.saved_bytes_fixed
        most = max(most, until + batch * o.work_bytes_per_sample + o.work_bytes_fixed)
    return most


def backward_of(model: nn.Module, x: Tensor) -> None:
    loss: Any = model(x)
    loss.backward()


class Loss(nn.Module):
    """`layer`, and another one before it, so that the input needs a gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x * self.scale)
        loss: Tensor = (y[0] if isinstance(y, tuple) else y).sum()
        return loss


LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "lstm": (lambda: nn.LSTM(256, 256), (32, 4, 256)),
    "lstm of narrower rows": (lambda: nn.LSTM(512, 256), (32, 4, 512)),
    "convolution": (lambda: nn.Conv2d(32, 32, 3, padding=1), (4, 32, 64, 64)),
    "strided": (lambda: nn.Conv2d(64, 128, 3, stride=2, padding=1), (4, 64, 32, 32)),
    "transposed": (lambda: nn.ConvTranspose2d(64, 32, 2, 2), (4, 64, 32, 32)),
    "product": (lambda: nn.Conv2d(32, 1, 1), (4, 32, 64, 64)),
}


ONEDNN = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="sizes are of AVX-512's kernels"
)


@ONEDNN
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_that_compute_on_copies(name: str, dtype: torch.dtype) -> None:
    if name == "product" and dtype is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported():
        pytest.skip(
            "where the CPU multiplies bf16, oneDNN copies 12% more (AMX) or 15% less than is described"
        )
    make, shape = LAYERS[name]
    model = Loss(make()).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    gradients = sum(p.nbytes for p in model.parameters())
    described = described_bytes(osdp.describe(model, x), shape[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        measured = peak_bytes(lambda: backward_of(model, x))
    finally:
        torch.set_num_threads(threads)
    assert 0.94 * (measured - gradients) <= described <= 1.15 * measured, (measured, gradients, described)


@ONEDNN
def test_gradients_of_an_operator_that_are_not_made_yet_leave_room_for_its_work() -> None:
    """A plan counts all of them from the begin of its backward."""
    x = torch.randn(32, 4, 256)
    model = Loss(nn.LSTM(256, 512, 2))
    gradients = sum(p.nbytes for p in model.parameters())
    described = described_bytes(osdp.describe(model, x), 32) + gradients
    measured = peak_bytes(lambda: backward_of(model, x))
    assert 0.98 * measured <= described <= 1.05 * measured, (measured, gradients, described)


class Copied(torch.autograd.Function):
    """The identity, whose gradient is a tensor of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].clone()


class UsedOften(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.scale
        copied: Any = Copied.apply
        copies = [copied(h) for _ in range(4)]
        return torch.stack([c.sum() for c in copies]).sum()


def test_gradients_of_what_is_used_often_are_added_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 2**16)
    assert gradient_sums.held_by_engine() is not None  # of this torch
    described = described_bytes(osdp.describe(UsedOften(), x), 4)
    model = UsedOften()
    assert described == pytest.approx(peak_bytes(lambda: backward_of(model, x)), abs=4096)
    monkeypatch.setattr(gradient_sums, "held_by_engine", lambda: None)
    assert described_bytes(osdp.describe(UsedOften(), x), 4) == described + x.nbytes


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(4, 64, 32))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.arange(1, 5, dtype=torch.int32) * (len(x) // 4)
        return nn.functional.grouped_mm(x, self.weights.transpose(-2, -1), offs=ends).square().sum()


def test_grouped_products_of_float32_are_followed_through_backward() -> None:
    x = torch.randn(64, 32)
    (operator,) = osdp.describe(Experts(), x).operators
    low = osdp.describe(Experts().to(torch.bfloat16), x.to(torch.bfloat16)).operators[0]
    assert operator.work_bytes_per_sample >= 64 * 4
    assert operator.saved_bytes_per_sample == 2 * low.saved_bytes_per_sample
    on_meta = osdp.describe(Experts().to("meta"), x.to("meta"))
    assert on_meta.operators[0].traced
