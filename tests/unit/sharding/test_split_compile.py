"""The split product under opcheck, FakeTensorMode, the meta device and torch.compile."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from osdp.sharding.split_linear import SPLITS, SplitCall
from tests.unit.sharding.split_helpers import TensorSource, stacked
from tests.unit.sharding.split_operators import split_linear

OUT, IN, G = 12, 8, 4


@pytest.fixture(autouse=True)
def forget_compiled_graphs() -> None:
    torch._dynamo.reset()


def arguments(
    split: str, with_bias: bool, trains: bool = True, transposed: bool = False
) -> tuple[object, ...]:
    torch.manual_seed(0)
    x = torch.randn(2, 3, IN, requires_grad=trains)
    stored = torch.randn(*((IN, OUT) if transposed else (OUT, IN)))
    weight = stacked(stored, G, split, transposed).requires_grad_(trains)
    bias = torch.randn(OUT, requires_grad=trains) if with_bias else None
    return (x, weight, bias, OUT, IN, G, SPLITS[split], transposed, 0)


@pytest.mark.parametrize("transposed", (True, False))
@pytest.mark.parametrize("split", ("out", "in"))
def test_opcheck_forward(split: str, transposed: bool) -> None:
    given = arguments(split, with_bias=not transposed, transposed=transposed)
    torch.library.opcheck(torch.ops.osdp.split_linear.default, given)


@pytest.mark.parametrize("mask", ([True, True, True], [True, False, False], [False, True, True]))
@pytest.mark.parametrize("split", ("out", "in"))
def test_opcheck_backward(split: str, mask: list[bool]) -> None:
    x, weight, *rest = arguments(split, False, trains=False)
    sizes = rest[1:]
    torch.library.opcheck(
        torch.ops.osdp.split_linear_backward.default,
        (torch.randn(2, 3, OUT), x, weight, *sizes, torch.float32, mask),
    )


@pytest.mark.parametrize("split", ("out", "in"))
def test_fake_tensors_have_the_shapes_and_strides_of_real_ones(split: str) -> None:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        y = split_linear(x, weight, bias, granularity=G, split=split)
        return [y, *torch.autograd.grad(y.sum(), (x, weight, bias))]

    real_args = arguments(split, True)[:3]
    real = run(*real_args)
    with FakeTensorMode() as mode:
        fake = run(*(mode.from_tensor(t) for t in real_args))
    meta = run(*(t.detach().to("meta").requires_grad_() for t in real_args))
    for r, f, m in zip(real, fake, meta, strict=True):
        for other in (f, m):
            assert (r.shape, r.stride(), r.dtype) == (other.shape, other.stride(), other.dtype)


class SplitLinear(nn.Module):
    def __init__(self, split: str, source: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(stacked(torch.randn(OUT, IN), G, split))
        self.bias = nn.Parameter(torch.randn(OUT))
        self.split, self.source = split, source

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ops.osdp.split_linear(
            x, self.weight, self.bias, OUT, IN, G, SPLITS[self.split], False, self.source
        )
        return torch.nn.functional.gelu(y)


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("split", ("out", "in"))
def test_compile_is_one_graph_and_the_same(split: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    module = SplitLinear(split)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for batch in (2, 5):
        x = torch.randn(batch, IN, requires_grad=True)
        expected = torch.autograd.grad(module(x).sum(), (x, *module.parameters()))
        actual = torch.autograd.grad(compiled(x).sum(), (x, *module.parameters()))
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e)


@pytest.mark.parametrize("x_trains", (True, False))
@pytest.mark.parametrize("split", ("out", "in"))
def test_a_compiled_graph_keeps_the_calls_to_the_source(split: str, x_trains: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(OUT, IN)
    source = TensorSource(weight, G, split)
    module = SplitLinear(split, source.id)
    module.bias.requires_grad_(False)  # then no result of the backward op is used unless x trains
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, IN, requires_grad=x_trains)
    compiled(x).sum().backward()
    events = [e[0] for e in source.events]
    assert events.count("put_grad") == G and source.balanced()
    assert events.count("acquire") == (2 * G if x_trains else G)
    full = weight.requires_grad_()
    F.gelu(F.linear(x.detach(), full, module.bias)).sum().backward()
    torch.testing.assert_close(source.full_grad(), full.grad)
    source.close()


def test_a_model_with_split_calls_compiles_around_them() -> None:
    """A SplitCall is C++, so a compiled model breaks its graph there; results and protocol stay the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(IN, IN), nn.Linear(IN, OUT), nn.GELU())
    x = torch.randn(3, IN)
    expected = model(x)
    split = model[1]
    source = TensorSource(split.weight, G, "out")
    split.forward = SplitCall(split.weight, split.bias, OUT, IN, G, "out", source.id)
    y = torch.compile(model, backend="aot_eager")(x)
    torch.testing.assert_close(y, expected)
    y.sum().backward()
    assert len(source.grads) == G and source.balanced()
    source.close()
