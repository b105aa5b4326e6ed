"""Shapes of linears, from a description: their rows for each sample, and their features."""

from __future__ import annotations

from osdp.description.model_description import Operator


def rows_of(o: Operator) -> int:
    """Rows of a linear's products for each sample."""
    if o.split_shape is None or not o.multiplies:
        return 0
    return o.flops_per_sample // (2 * o.split_shape[0] * o.split_shape[1] * max(1, o.calls))


def features(o: Operator) -> tuple[int, int]:
    """(out, in) of a linear; of an embedding its width, twice."""
    if o.split_shape is not None and o.multiplies:
        return o.split_shape
    shape = next((p.shape for p in o.parameters if len(p.shape) == 2), (0, 0))
    return (shape[1], shape[1]) if o.kind == "Embedding" else (shape[0], shape[1])
