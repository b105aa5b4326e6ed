"""The split matrix product in torch: the operator, its shape functions, and the replacement of a Linear's
forward.

Importing this module loads `osdp._C` and registers the shape functions that FakeTensor, meta tensors and
torch.compile need; whoever builds a `SplitCall` imports it from here. How it works: docs/splitting.md.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor

from osdp._C import SplitCall, register_source, unregister_source

__all__ = ["SPLITS", "SplitCall", "register_source", "split_linear", "unregister_source"]

SPLITS = {"out": 0, "in": 1}


def split_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    granularity: int,
    split: str,
    out_features: int | None = None,
    in_features: int | None = None,
    source: int = 0,
    transposed: bool = False,
) -> Tensor:
    """`F.linear(x, W, bias)` in `granularity` slices of W; x [..., in_features] -> [..., out_features].

    With `source` 0, `weight` holds every slice: split "out": [out, in], the ordinary weight; split "in":
    [granularity * out, in / granularity], with the slices stacked vertically. Otherwise slices come from the
    registered source (see `register_source`), and `weight` is the sharded parameter; both sizes must be
    given. `transposed`: the ordinary weight is [in, out] (transformers' Conv1D), whose rows split "in" slices.

    >>> split_linear(torch.ones(2, 4), torch.eye(4), granularity=2, split="out").shape
    torch.Size([2, 4])
    """
    sizes = {"out_features": out_features, "in_features": in_features}
    stored = dict(reversed(sizes.items())) if transposed else sizes
    by_rows = (split == "out") != transposed
    rows, columns = whole_sizes(weight, granularity, split, source, by_rows=by_rows, **stored)
    out_features, in_features = (columns, rows) if transposed else (rows, columns)
    result: Tensor = torch.ops.osdp.split_linear(
        x, weight, bias, out_features, in_features, granularity, SPLITS[split], transposed, source
    )
    return result


def whole_sizes(
    weight: Tensor, granularity: int, split: str, source: int, *, by_rows: bool, **sizes: int | None
) -> tuple[int, int]:
    """Rows and columns of the whole weight, by the names that the caller gives them: those given, else of `weight`,
    which has all slices if `source` is 0, one below the other."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {', '.join(map(repr, SPLITS))}")
    if source != 0 and None in sizes.values():
        raise ValueError(f"{' and '.join(sizes)} are required with a source")
    stacked = 1 if by_rows else granularity
    first, second = sizes.values()
    return (
        weight.shape[0] // stacked if first is None else first,
        weight.shape[1] * stacked if second is None else second,
    )


@torch.library.register_fake("osdp::split_linear")  # type: ignore[untyped-decorator]
def _split_linear_shape(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_features: int,
    in_features: int,
    granularity: int,
    split: int,
    transposed: bool,
    source: int,
) -> Tensor:
    if x.shape[-1] != in_features:
        raise RuntimeError(f"osdp::split_linear: x is {tuple(x.shape)}, not [..., {in_features}]")
    return x.new_empty((*x.shape[:-1], out_features))


@torch.library.register_fake("osdp::split_linear_backward")  # type: ignore[untyped-decorator]
def _split_linear_backward_shape(
    grad: Tensor,
    x: Tensor | None,
    weight: Tensor | None,
    out_features: int,
    in_features: int,
    granularity: int,
    split: int,
    transposed: bool,
    source: int,
    weight_dtype: torch.dtype,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    rows, columns = (in_features, out_features) if transposed else (out_features, in_features)
    slices = 1 if (split == SPLITS["out"]) != transposed else granularity
    stacked = (slices * rows, columns // slices)
    return (
        grad.new_empty((*grad.shape[:-1], in_features)) if output_mask[0] else None,
        grad.new_empty(stacked, dtype=weight_dtype) if output_mask[1] and source == 0 else None,
        grad.new_empty((out_features,)) if output_mask[2] else None,
    )


# With a source the slices' gradients are reduced inside this op, so graphs must keep it even if its results
# are unused.
torch.fx.node.has_side_effect(torch.ops.osdp.split_linear_backward.default)
