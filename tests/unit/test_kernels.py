"""The element-wise kernels against torch, for every dtype and awkward sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osdp import _C

kernels = _C.kernels
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
    kernels.cast(dst, src)
    assert same_bits(dst, src.to(dst_dtype))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_cast_to_16_bits_rounds_every_edge_as_torch_does(dtype: torch.dtype) -> None:
    src = rounding_edges(dtype)
    dst = torch.empty(src.shape, dtype=dtype)
    kernels.cast(dst, src)
    assert same_bits(dst, src.to(dtype))


@pytest.mark.parametrize("wide", (torch.float32, torch.float64))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_cast_from_16_bits_is_exact_for_all_65536_values(dtype: torch.dtype, wide: torch.dtype) -> None:
    src = every_half(dtype)
    dst = torch.empty(src.shape, dtype=wide)
    kernels.cast(dst, src)
    assert same_bits(dst, src.to(wide))
    back = torch.empty_like(src)
    kernels.cast(back, dst)
    assert same_bits(back, src)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 9),
    cols=st.integers(0, 9),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
    dtype=st.sampled_from(DTYPES),
)
def test_pack_and_unpack_move_exactly_a_column_range(
    rows: int, cols: int, before: int, after: int, dtype: torch.dtype
) -> None:
    matrix = sample(rows * (before + cols + after), dtype).view(rows, before + cols + after)
    packed = torch.full((rows, cols), -1, dtype=dtype)
    kernels.pack(packed, matrix[:, before : before + cols])
    assert torch.equal(packed, matrix[:, before : before + cols])

    target = torch.full_like(matrix, 5)
    expected = target.clone()
    expected[:, before : before + cols] = packed
    kernels.unpack(target[:, before : before + cols], packed)
    assert torch.equal(target, expected)


def test_pack_and_unpack_large() -> None:
    matrix = sample(1003 * 517, torch.float32).view(1003, 517)
    slices = [matrix[:, first : first + 47] for first in range(0, 517, 47)]
    packed = torch.empty(len(slices), 1003, 47)
    for buffer, columns in zip(packed, slices, strict=True):
        kernels.pack(buffer, columns)
    back = torch.empty_like(matrix)
    for i, buffer in enumerate(packed):
        kernels.unpack(back[:, i * 47 : (i + 1) * 47], buffer)
    assert torch.equal(back, matrix)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("src_dtype", DTYPES)
@pytest.mark.parametrize("dst_dtype", DTYPES)
def test_accumulate_adds_scaled_and_rounds_once(
    dst_dtype: torch.dtype, src_dtype: torch.dtype, count: int
) -> None:
    dst, src = sample(count, dst_dtype, 1), sample(count, src_dtype, 2)
    compute = torch.float64 if torch.float64 in (dst_dtype, src_dtype) else torch.float32
    expected = (dst.to(compute) + (src.to(compute) * torch.tensor(0.3, dtype=compute))).to(dst_dtype)
    kernels.accumulate(dst, src, 0.3)
    # A compiler may fuse multiply and add, which rounds once less.
    torch.testing.assert_close(dst, expected, rtol=2 * torch.finfo(dst_dtype).eps, atol=1e-6)


def test_accumulate_by_one_is_exact_addition() -> None:
    total, part = sample(1001, torch.float32), sample(1001, torch.bfloat16)
    expected = total + part.float()
    kernels.accumulate(total, part)
    assert torch.equal(total, expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_and_zero(dtype: torch.dtype, count: int) -> None:
    x = sample(count, dtype)
    expected = x * 0.25
    kernels.scale(x, 0.25)
    assert torch.equal(x, expected)
    x.fill_(float("nan"))
    kernels.zero(x)
    assert torch.equal(x, torch.zeros(count, dtype=dtype))


def test_arguments_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="number of elements"):
        kernels.cast(torch.empty(3), torch.empty(4))
    with pytest.raises(ValueError, match="contiguous"):
        kernels.scale(torch.empty(4, 4).t()[:2], 2.0)
    with pytest.raises(TypeError, match="Long"):
        kernels.zero(torch.empty(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="column stride"):
        kernels.pack(torch.empty(2, 3), torch.empty(3, 2).t())
