"""The look-up of an nn.Embedding in slices: the operator in torch, and its shape functions.

As of the split product (osdp/sharding/split_linear.py). How it works: docs/splitting.md.
"""

from __future__ import annotations

import torch
import torch.fx
from torch import Tensor

from osdp._C import SplitLookUp
from osdp.sharding.split_linear import SPLITS, whole_sizes

__all__ = ["SplitLookUp", "split_embedding"]


def split_embedding(
    indices: Tensor,
    weight: Tensor,
    *,
    granularity: int,
    split: str,
    rows: int | None = None,
    columns: int | None = None,
    padding_idx: int | None = None,
    source: int = 0,
) -> Tensor:
    """`F.embedding(indices, W)` in `granularity` slices of W [rows, columns]; indices [...] -> [..., columns].

    `weight`, `split` and `source` are as in `split_linear`: "out" slices the rows, "in" the columns; with a
    source both sizes must be given.

    >>> split_embedding(torch.tensor([3, 0]), torch.eye(4), granularity=2, split="out").shape
    torch.Size([2, 4])
    """
    rows, columns = whole_sizes(
        weight, granularity, split, source, by_rows=split == "out", rows=rows, columns=columns
    )
    padding = -1 if padding_idx is None else padding_idx
    result: Tensor = torch.ops.osdp.split_embedding(
        indices, weight, rows, columns, padding, granularity, SPLITS[split], source
    )
    return result


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
