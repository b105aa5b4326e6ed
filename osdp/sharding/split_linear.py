"""The split matrix product in torch: its shape functions, and the replacement of a Linear's forward.

Importing this module loads `osdp._C` and registers the shape functions that FakeTensor, meta tensors and
torch.compile need; whoever builds a `SplitCall` imports it from here. How it works: docs/splitting.md.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor

from osdp._C import SplitCall

__all__ = ["SPLITS", "SplitCall"]

SPLITS = {"out": 0, "in": 1}


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
