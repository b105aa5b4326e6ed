"""Times of an operator's kernels on a machine that was not measured: a roofline for each kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from osdp.description.model_description import Kernel, ModelDescription, Operator
from osdp.hardware.hardware import Hardware, KernelRates
from osdp.plan.choice import SPLITS, fits

# Note [Roofline]
# A kernel takes the larger of its flops at its rate and of its bytes at the memory's, and a launch. Products reach
# `flops_per_s_by_dtype` where all of their dimensions are large, and d / (d + half_rate_dimension) of it where the least is
# d: tiles that are not filled, and sums that are too short to hide the reads of their first tiles. Attention has a rate of
# its own, as its softmax runs between two products; in short sequences, which have few flops per byte i, it reaches
# i / (i + attention_half_intensity) of that.


def kernels_s(kernels: Sequence[Kernel], rates: KernelRates, flops_per_s: float, batch: float) -> float:
    """Seconds of all kernels at a batch of that size."""
    return sum(k.count * _kernel_s(k, rates, flops_per_s, batch) for k in kernels)


def _kernel_s(k: Kernel, rates: KernelRates, flops_per_s: float, batch: float) -> float:
    flops = k.flops_fixed + k.flops_per_sample * batch
    moved_s = (k.bytes_fixed + k.bytes_per_sample * batch) / rates.memory_bytes_per_s
    if k.kind == "attention":
        flops_per_s *= rates.attention_share
        moved = k.bytes_fixed + k.bytes_per_sample * batch
        if moved and flops:
            flops_per_s *= flops / (flops + rates.attention_half_intensity * moved)
    elif k.kind == "product":
        growing = k.dimension_per_sample * batch
        least = min((d for d in (k.dimension, growing) if d > 0), default=0.0)
        if least:
            flops_per_s *= least / (least + rates.half_rate_dimension)
    return max(flops / flops_per_s, moved_s) + rates.launch_s


# Note [Thin slices]
# A slice of a Linear's weight is cut along its rows, or else its columns. Its three products have that dimension, so that
# many slices are slow as thin products are; and each reads, or adds to, the whole of the other activation once more.
MOST_SLICES = 64  # that are priced by their shapes; more take a launch each longer than the whole


def slices_s(
    operator: Operator,
    description: ModelDescription,
    hardware: Hardware,
    flops_per_s: float,
    batch: int,
    bytes_per_element: int,
) -> list[tuple[int, float]]:
    """By number of slices, how much longer a forward and backward takes than without; [] where either side does not say."""
    rates, shape = hardware.kernel_rates, operator.split_shape
    if rates is None or shape is None or min(operator.forward_kernels, operator.backward_kernels) < 0:
        return []
    if operator.look_ups:  # which have no products; those of a tied head are not this operator's
        return []
    kernels = [
        k
        for at in (operator.forward_kernels, operator.backward_kernels)
        for k in description.kernels[at]
        if k.kind == "product"
    ]
    whole = kernels_s(kernels, rates, flops_per_s, batch)
    rows = operator.flops_per_sample * batch / (2 * shape[0] * shape[1] * max(1, operator.calls))
    read = (
        shape[0],
        shape[1] // max(1, operator.kernel_places),
    )  # a convolution's places read the same inputs
    found = []
    for n in range(2, MOST_SLICES + 1):
        cut = _dimension_cut(operator, n)
        if cut is None:
            continue
        again = round((1 - 1 / n) * rows * read[1 - cut] * bytes_per_element)
        thin = [_slice_of(k, n, shape[cut] // n, again) for k in kernels]
        found.append((n, max(0.0, n * kernels_s(thin, rates, flops_per_s, batch) - whole)))
    return found


def _dimension_cut(operator: Operator, slices: int) -> int | None:
    """Of `split_shape`: as split_of in csrc/search/problem/slices.hpp."""
    assert operator.split_shape is not None
    rows, columns = (1, 0) if operator.transposed else (0, 1)
    even = operator.split_shape[rows] % slices == 0
    return next(
        (d for d in ((rows,) if even else (columns, rows)) if fits(operator, slices, SPLITS[d])), None
    )


def _slice_of(k: Kernel, slices: int, dimension: int, again_bytes: int) -> Kernel:
    return replace(
        k,
        flops_per_sample=k.flops_per_sample // slices,
        flops_fixed=k.flops_fixed // slices,
        bytes_per_sample=k.bytes_per_sample // slices,
        bytes_fixed=k.bytes_fixed // slices + again_bytes,
        dimension=min(k.dimension, dimension) if k.dimension else dimension,
    )


def operator_s(
    operator: Operator, description: ModelDescription, hardware: Hardware, flops_per_s: float, batch: int
) -> tuple[float, float] | None:
    """Seconds of its forward and of its backward at a batch of that size; None where either side does not say."""
    rates = hardware.kernel_rates
    if rates is None or operator.forward_kernels < 0 or operator.backward_kernels < 0:
        return None
    forward, backward = (
        kernels_s(description.kernels[at], rates, flops_per_s, batch)
        for at in (operator.forward_kernels, operator.backward_kernels)
    )
    return forward, backward
