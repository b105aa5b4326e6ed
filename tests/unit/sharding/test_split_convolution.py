"""nn.Conv1d, 2d and 3d in slices of their outputs: values, gradients and peaks are torch's, of one slice at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from osdp.sharding.split_convolution import split_convolution
from tests.unit.allocations import peak_bytes
from tests.unit.sharding.split_helpers import TensorSource


def sliced(conv: Any, granularity: int, source: TensorSource | None = None) -> tuple[Any, TensorSource]:
    """`conv` computed in slices, its parameter a shard that has no right values."""
    source = source or TensorSource(conv.weight, granularity, "out")
    sizes = conv.weight.shape
    conv.weight.data = torch.full_like(conv.weight.data[:1], float("nan"))
    conv.forward = split_convolution(conv, sizes, granularity, source.id)
    return conv, source


CASES: tuple[tuple[type[nn.Module], dict[str, Any], tuple[int, ...]], ...] = (
    (nn.Conv1d, {"padding": 1, "stride": 2}, (2, 3, 9)),
    (nn.Conv2d, {"padding": (2, 0), "dilation": (2, 1), "bias": False}, (2, 3, 8, 7)),
    (nn.Conv2d, {"padding": "same"}, (3, 6, 7)),  # no batch
    (nn.Conv2d, {"padding": "same", "kernel_size": (2, 3)}, (2, 3, 6, 7)),
    (nn.Conv2d, {"padding": 1, "padding_mode": "circular"}, (1, 3, 6, 7)),
    (nn.Conv2d, {"padding": "valid", "padding_mode": "reflect"}, (2, 3, 6, 7)),
    (nn.Conv3d, {"padding": (0, 1, 2), "padding_mode": "replicate"}, (2, 3, 4, 4, 5)),
)


@pytest.mark.parametrize("granularity", (1, 2, 3))
@pytest.mark.parametrize(("kind", "options", "shape"), CASES)
def test_values_and_gradients_are_torchs(
    kind: type[nn.Module], options: dict[str, Any], shape: tuple[int, ...], granularity: int
) -> None:
    conv: Any = kind(3, 7, **({"kernel_size": 3} | options), dtype=torch.float64)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = conv(x)
    seed = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, *conv.parameters()), seed)
    _, source = sliced(conv, granularity)
    y = conv(x)
    assert torch.allclose(y, expected, rtol=0, atol=1e-12) and source.balanced() and source.most_held == 1
    y.backward(seed)
    assert source.balanced() and source.most_held == 1 and conv.weight.grad is None
    found = (x.grad, source.full_grad(), *(() if conv.bias is None else (conv.bias.grad,)))
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)
    source.close()


def test_only_gradients_that_are_wanted_are_made() -> None:
    """The input of a first layer wants none, and then backward acquires no slice; a frozen weight wants none."""
    conv, source = sliced(nn.Conv2d(3, 6, 3), 2)
    conv(torch.randn(2, 3, 5, 5)).sum().backward()
    assert [event[0] for event in source.events if event[0] != "release"] == ["acquire"] * 2 + [
        "put_grad"
    ] * 2
    conv.weight.requires_grad_(False), conv.bias.requires_grad_(False), source.events.clear()
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None and all(event[0] != "put_grad" for event in source.events)
    assert not conv(x.detach()).requires_grad
    source.close()


@pytest.mark.parametrize("autocast", (False, True))
def test_bf16_sums_in_float(autocast: bool) -> None:
    """Gradients of the input are as near to the exact ones as torch's are: terms are not added up in 16 bits."""
    whole = nn.Conv2d(64, 64, 3, padding=1).to(torch.float32 if autocast else torch.bfloat16)
    x = torch.randn(2, 64, 6, 6, dtype=whole.weight.dtype, requires_grad=True)
    exact = copy.deepcopy(whole).double()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        expected = whole(x)
    seed = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, *whole.parameters()), seed)
    at = x.detach().double().requires_grad_()
    (truth,) = torch.autograd.grad(exact(at), at, seed.double())
    conv, source = sliced(whole, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = conv(x)
    assert y.dtype == torch.bfloat16 and torch.allclose(y, expected, atol=1e-2, rtol=1e-2)
    y.backward(seed)
    assert x.grad is not None and x.grad.dtype == x.dtype
    error, torchs = ((g.double() - truth).norm() for g in (x.grad, wanted[0]))
    assert error <= 1.5 * torchs, (error, torchs)
    assert torch.allclose(source.full_grad().to(wanted[1].dtype), wanted[1], atol=5e-2, rtol=1e-2)
    assert torch.allclose(conv.bias.grad, wanted[2], atol=0.1, rtol=1e-2)
    source.close()


def test_a_functional_call_computes_with_what_it_gives() -> None:
    conv, source = sliced(nn.Conv1d(3, 6, 3), 2)
    given = {"weight": torch.randn(6, 3, 3), "bias": torch.randn(6)}
    x = torch.randn(2, 3, 8)
    found = torch.func.functional_call(conv, given, (x,))
    assert torch.equal(found, nn.functional.conv1d(x, **given)) and not source.events
    source.close()


def test_what_cannot_be_is_refused() -> None:
    conv, source = sliced(nn.Conv1d(3, 6, 3), 2)
    x = torch.randn(2, 3, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="was given an input"):
        conv(torch.randn(1, 2, 3, 8))
    y = conv(x)

    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="in slices cannot be differentiated twice"):
        grad.sum().backward()
    y = conv(x)
    with torch.no_grad():
        conv.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    source.close()


class Made(TensorSource):
    """Makes a fresh slice at each acquire, as a gather does, and drops the gradients, as a reduction does."""

    def release(self, index: int) -> None:
        del self.held[index]

    def put_grad(self, index: int, grad: Tensor) -> None:
        pass


def test_peak_is_a_slice_and_its_gradient() -> None:
    """1 x 1 kernels, which need no columns of the input."""
    channels, g = 512, 8
    whole = nn.Conv2d(channels, channels, 1, bias=False)
    conv, source = sliced(whole, g, Made(whole.weight, g, "out"))
    x = torch.randn(1, channels, 4, 4, requires_grad=True)
    one, slice_bytes = x.nbytes, 4 * channels**2 // g
    outputs: list[Tensor] = []
    assert peak_bytes(lambda: outputs.append(conv(x))) <= slice_bytes * 2 + 3 * one
    y = outputs.pop().sum()
    assert peak_bytes(lambda: y.backward()) <= 3 * slice_bytes + 4 * one
    source.close()
