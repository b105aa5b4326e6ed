"""The look-up of an nn.Embedding in slices: its shape functions in torch.

As of the split product (osdp/sharding/split_linear.py). How it works: docs/splitting.md.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor

from osdp._C import SplitLookUp
from osdp.sharding.split_linear import SPLITS

__all__ = ["SplitLookUp"]


@torch.library.register_fake("osdp::split_embedding")  # type: ignore[untyped-decorator]
def _split_embedding_shape(
    indices: Tensor,
    weight: Tensor,
    rows: int,
    columns: int,
    padding_idx: int,
    granularity: int,
    split: int,
    source: int,
) -> Tensor:
    return weight.new_empty((*indices.shape, columns))


@torch.library.register_fake("osdp::split_embedding_backward")  # type: ignore[untyped-decorator]
def _split_embedding_backward_shape(
    grad: Tensor,
    indices: Tensor,
    rows: int,
    columns: int,
    padding_idx: int,
    granularity: int,
    split: int,
    source: int,
    weight_dtype: torch.dtype,
) -> Tensor | None:
    slices = granularity if split == SPLITS["in"] else 1
    stacked = (slices * rows, columns // slices)
    return grad.new_empty(stacked, dtype=weight_dtype) if source == 0 else None


# With a source the slices' gradients are reduced inside this op, so graphs must keep it.
torch.fx.node.has_side_effect(torch.ops.osdp.split_embedding_backward.default)
