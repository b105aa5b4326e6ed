"""The operators of slices, with sizes that may be left out; SplitCall and SplitLookUp always give them."""

from __future__ import annotations

import torch
from torch import Tensor

import osdp.sharding.split_embedding  # noqa: F401, its shape functions
from osdp.sharding.split_linear import SPLITS


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
