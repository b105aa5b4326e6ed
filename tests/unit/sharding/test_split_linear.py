"""Values and gradients of the split matrix product, against torch.nn.functional.linear."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.unit.sharding.split_helpers import DTYPES, TensorSource, stacked
from tests.unit.sharding.split_operators import split_linear

OUT, IN = 24, 48  # divisible by 1, 2, 3, 4 and 8
LEADING = ((), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 3))


def operands(leading: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((*leading, IN), (OUT, IN), (OUT,))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def close(actual: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    assert (actual is None) == (expected is None)
    if actual is None or expected is None:
        return
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    # Sums of up to 48 products of magnitude 1, in another order: a few roundings of values up to about 20.
    atol = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual, expected, rtol=4 * torch.finfo(dtype).eps, atol=atol)


@pytest.mark.parametrize(
    ("split", "granularity", "transposed"),
    [
        *itertools.product(("out", "in"), (1, 2, 3, 4, 8), (False,)),
        *(("out", 5, False), ("out", 7, False), ("out", OUT, False)),  # slices that differ by one row
        *(("in", 1, True), ("in", 4, True), ("in", 5, True), ("in", 7, True), ("out", 4, True)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_as_linear_whoever_holds_the_slices(
    dtype: torch.dtype, split: str, granularity: int, transposed: bool
) -> None:
    for leading, with_bias, with_source in itertools.product(LEADING, (True, False), (True, False)):
        x, weight, bias = (t.requires_grad_() for t in operands(leading, dtype))
        b = bias if with_bias else None
        expected = F.linear(x, weight, b)
        seed = torch.randn_like(expected)
        expected_grads = torch.autograd.grad(expected, (x, weight, *([bias] if with_bias else [])), seed)

        stored, grad = (t.T if transposed else t for t in (weight.detach(), expected_grads[1]))
        source = TensorSource(stored, granularity, split, transposed) if with_source else None
        held = stored[:1].clone() if source else stacked(stored, granularity, split, transposed)
        held.requires_grad_()
        y = split_linear(
            x, held, b, granularity=granularity, split=split, out_features=OUT, in_features=IN,
            source=source.id if source else 0, transposed=transposed,
        )  # fmt: skip
        close(y, expected, dtype)
        assert y.is_contiguous()
        y.backward(seed)
        close(x.grad, expected_grads[0], dtype)
        if source is not None:
            assert held.grad is None and source.balanced() and source.most_held == 1
            close(source.full_grad(), grad, dtype)
            source.close()
        else:
            close(held.grad, stacked(grad, granularity, split, transposed), dtype)
        close(bias.grad, expected_grads[2] if with_bias else None, dtype)


@settings(max_examples=60, deadline=None)
@given(
    trains=st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any),
    split=st.sampled_from(("out", "in")),
    granularity=st.sampled_from((1, 2, 3, 4)),
    with_source=st.booleans(),
    layout=st.sampled_from(("contiguous", "transposed", "strided", "expanded")),
    seed=st.integers(0, 5),
)
def test_frozen_operands_and_awkward_strides(
    trains: tuple[bool, bool, bool], split: str, granularity: int, with_source: bool, layout: str, seed: int
) -> None:
    x, weight, bias = operands((4, 6), torch.float64, seed)
    x = {
        "contiguous": x,
        "transposed": x.transpose(0, 1),
        "strided": torch.stack([x, x], -1)[..., 0],
        "expanded": x[:1, :1].expand(4, 6, IN),
    }[layout].detach()
    ordinary = weight.clone()
    source = TensorSource(weight, granularity, split) if with_source else None
    held = weight[:2].clone() if source else stacked(weight, granularity, split)
    leaves = (x, ordinary, bias)
    for leaf, trained in zip(leaves, trains, strict=True):
        leaf.requires_grad_(trained)
    held.requires_grad_(trains[1])
    expected = F.linear(*leaves)
    expected.sum().backward()  # its gradient is an expanded scalar: strides 0
    expected_grads = [leaf.grad for leaf in leaves]
    x.grad = bias.grad = None

    y = split_linear(
        x, held, bias, granularity=granularity, split=split, out_features=OUT, in_features=IN,
        source=source.id if source else 0,
    )  # fmt: skip
    close(y, expected, torch.float64)
    if source is not None:
        source.events.clear()
    y.sum().backward()
    close(x.grad, expected_grads[0], torch.float64)
    close(bias.grad, expected_grads[2], torch.float64)
    if source is None:
        wanted = None if expected_grads[1] is None else stacked(expected_grads[1], granularity, split)
        close(held.grad, wanted, torch.float64)
        return
    names = {name for name, *_ in source.events}
    assert ("acquire" in names) == trains[0]  # slices are for grad_x only
    assert ("put_grad" in names) == trains[1]
    if trains[1]:
        close(source.full_grad(), expected_grads[1], torch.float64)
    source.close()


@pytest.mark.parametrize("split", ("out", "in"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_16_bit_sums_are_as_accurate_as_unsplit(dtype: torch.dtype, split: str) -> None:
    generator = torch.Generator().manual_seed(1)
    size = 512
    x, weight = (
        torch.randn(size, size, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)
    )
    exact_y = F.linear(x.double(), weight.double())
    exact_gx = exact_y @ weight.double()

    def errors(y: Tensor, gx: Tensor) -> tuple[float, float]:
        return (y.double() - exact_y).norm().item(), (gx.double() - exact_gx).norm().item()

    seed = exact_y.to(dtype)
    x.requires_grad_()
    y = F.linear(x, weight)
    unsplit = errors(y, torch.autograd.grad(y, x, seed)[0])
    y = split_linear(x, stacked(weight, 8, split), granularity=8, split=split)
    ours = errors(y, torch.autograd.grad(y, x, seed)[0])
    # Each of 8 products is rounded once, their sum in float once more: sqrt(2) of one rounding. A sum kept in
    # 16 bits would have about sqrt(8 / 2) times the error.
    assert ours[0] < 1.6 * unsplit[0] and ours[1] < 1.6 * unsplit[1]


@pytest.mark.parametrize("granularity", (1, 2, 4))
@pytest.mark.parametrize("split", ("out", "in"))
def test_gradcheck(split: str, granularity: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 8), (8, 8), (8,))
    x, weight, bias = (
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    )
    held = stacked(weight.detach(), granularity, split).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w, b: split_linear(x, w, b, granularity=granularity, split=split), (x, held, bias)
    )


def test_differentiating_twice_is_refused_and_says_what_to_do() -> None:
    x, weight, _ = (t.requires_grad_() for t in operands((3,), torch.float64))
    y = split_linear(x, weight, granularity=2, split="out")
    (gx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    close(gx.detach(), 2 * (x @ weight.t()) @ weight, torch.float64)
    with pytest.raises(NotImplementedError, match="granularity 1"):
        gx.sum().backward()


@pytest.mark.parametrize("with_source", (True, False))
@pytest.mark.parametrize("split", ("out", "in"))
def test_autocast_as_linear_does(split: str, with_source: bool) -> None:
    x, weight, bias = (t.requires_grad_() for t in operands((5,), torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.linear(x, weight, bias)
    expected.float().sum().backward()
    expected_grads = (x.grad, weight.grad, bias.grad)
    x.grad = bias.grad = None
    source = TensorSource(weight, 4, split) if with_source else None
    held = weight[:3].detach() if source else stacked(weight.detach(), 4, split)
    held.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = split_linear(
            x, held, bias, granularity=4, split=split, out_features=OUT, in_features=IN,
            source=source.id if source else 0,
        )  # fmt: skip
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    close(y, expected, torch.bfloat16)
    for actual, wanted in zip((x.grad, bias.grad), (expected_grads[0], expected_grads[2]), strict=True):
        assert actual is not None and actual.dtype == torch.float32
        torch.testing.assert_close(actual, wanted, rtol=0.02, atol=0.5)
    grad = source.full_grad() if source else held.grad
    # A source gets what was computed, and widens it where it adds.
    assert grad is not None and grad.dtype == (torch.bfloat16 if source else torch.float32)
    wanted = expected_grads[1] if source else stacked(expected_grads[1], 4, split)
    torch.testing.assert_close(grad.float(), wanted, rtol=0.02, atol=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"granularity": 5, "split": "in", "out_features": OUT, "in_features": IN}, "does not divide"),
        ({"granularity": OUT + 1}, "is more than out_features 24"),
        ({"granularity": 5, "transposed": True, "out_features": OUT, "in_features": IN}, "does not divide"),
        ({"granularity": 0}, "at least 1"),
        ({"x": torch.zeros(2, IN + 1)}, "last dimension"),
        ({"x": torch.zeros(())}, "last dimension"),
        ({"x": torch.zeros(2, IN, dtype=torch.float64)}, "Double"),
        ({"x": torch.zeros(2, IN, dtype=torch.int64)}, "floating point"),
        ({"weight": torch.zeros(OUT, IN - 1), "in_features": IN}, "weight is"),
        ({"bias": torch.zeros(OUT + 1)}, "bias is"),
        ({"source": 10**9, "out_features": OUT, "in_features": IN}, "not registered"),
        ({"source": 10**9}, "are required"),
        ({"split": "sideways"}, "sideways"),
    ),
)
def test_arguments_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "x": torch.zeros(2, IN), "weight": torch.zeros(OUT, IN), "granularity": 2, "split": "out",
    }  # fmt: skip
    with pytest.raises((ValueError, RuntimeError, TypeError), match=message):
        split_linear(**(arguments | change))
