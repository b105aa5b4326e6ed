"""csrc/elementwise against torch, for every dtype and awkward sizes."""

from __future__ import annotations

import pytest
import torch

from osdp import _C

elementwise = _C.elementwise
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
COUNTS = (0, 1, 3, 17, 100_003)


def sample(count: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, NaN equal to NaN, and the signs of zeros equal too."""
    nan = a.isnan() & b.isnan()
    return bool(((a == b) & (a.signbit() == b.signbit()) | nan).all())


def every_half(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def rounding_edges(dtype: torch.dtype) -> torch.Tensor:
    """Each value of a 16-bit type, the midpoint to the next, and the floats beside both; specials."""
    exact = every_half(dtype).float()
    exact = exact[exact.isfinite()].sort().values
    middle = (exact[1:].double() + exact[:-1].double()).div(2).float()
    points = torch.cat(
        [exact, middle, torch.tensor([65519.99, 65520.0, 65536.0, 3.4e38, 1e-45, 6e-8, 2.9e-8])]
    )
    inf = torch.tensor(float("inf"))
    specials = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0])
    return torch.cat([points, -points, points.nextafter(inf), points.nextafter(-inf), specials])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("src_dtype", DTYPES)
@pytest.mark.parametrize("dst_dtype", DTYPES)
def test_cast_equals_torch(dst_dtype: torch.dtype, src_dtype: torch.dtype, count: int) -> None:
    src = sample(count, src_dtype)
    dst = torch.full((count,), 7, dtype=dst_dtype)
    elementwise.cast(dst, src)
    assert same_bits(dst, src.to(dst_dtype))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_cast_to_16_bits_rounds_every_edge_as_torch_does(dtype: torch.dtype) -> None:
    src = rounding_edges(dtype)
    dst = torch.empty(src.shape, dtype=dtype)
    elementwise.cast(dst, src)
    assert same_bits(dst, src.to(dtype))


@pytest.mark.parametrize("wide", (torch.float32, torch.float64))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_cast_from_16_bits_is_exact_for_all_65536_values(dtype: torch.dtype, wide: torch.dtype) -> None:
    src = every_half(dtype)
    dst = torch.empty(src.shape, dtype=wide)
    elementwise.cast(dst, src)
    assert same_bits(dst, src.to(wide))
    back = torch.empty_like(src)
    elementwise.cast(back, dst)
    assert same_bits(back, src)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("src_dtype", DTYPES)
@pytest.mark.parametrize("dst_dtype", DTYPES)
def test_accumulate_adds_scaled_and_rounds_once(
    dst_dtype: torch.dtype, src_dtype: torch.dtype, count: int
) -> None:
    dst, src = sample(count, dst_dtype, 1), sample(count, src_dtype, 2)
    compute = torch.float64 if torch.float64 in (dst_dtype, src_dtype) else torch.float32
    expected = (dst.to(compute) + (src.to(compute) * torch.tensor(0.3, dtype=compute))).to(dst_dtype)
    elementwise.accumulate(dst, src, 0.3)
    # A compiler may fuse multiply and add, which rounds once less.
    torch.testing.assert_close(dst, expected, rtol=2 * torch.finfo(dst_dtype).eps, atol=1e-6)


def test_accumulate_by_one_is_exact_addition() -> None:
    total, part = sample(1001, torch.float32), sample(1001, torch.bfloat16)
    expected = total + part.float()
    elementwise.accumulate(total, part)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_equals_torch(dtype: torch.dtype, count: int) -> None:
    x = sample(count, dtype)
    expected = x * 0.25
    elementwise.scale(x, 0.25)
    assert torch.equal(x, expected)


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="number of elements"):
        elementwise.cast(torch.empty(3), torch.empty(4))
    with pytest.raises(ValueError, match="contiguous"):
        elementwise.scale(torch.empty(4, 4).t()[:2], 2.0)
    with pytest.raises(TypeError, match="Long"):
        elementwise.scale(torch.empty(3, dtype=torch.int64), 2.0)
    with pytest.raises(ValueError, match="host memory"):
        elementwise.cast(torch.empty(3), torch.empty(3, device="meta"))
