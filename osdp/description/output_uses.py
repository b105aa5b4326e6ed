"""What forward does with a linear's outputs: it cuts them in parts, or views them in groups (heads).

A linear that is shared by its outputs gives each rank consecutive ones. That is a part of each group where forward has fewer
groups then, and no part of each of the things that are cut apart (a fused projection of queries, keys and values).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_MADE_BY = "_osdp_made_by"  # attribute of an output
_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten._reshape_alias.default}
# Functions and the position of their dimension.
_CUTS = {
    _aten.split.Tensor: 2,
    _aten.split_with_sizes.default: 2,
    _aten.unbind.int: 1,
    _aten.select.int: 1,
    _aten.slice.Tensor: 1,
    _aten.narrow.default: 1,
}


def made_by(module: nn.Module, name: str, output: Any) -> None:
    """Remember that `output` is of the module, where that is a linear."""
    if isinstance(module, nn.Linear) and isinstance(output, Tensor):
        setattr(output, _MADE_BY, name)


def maker(tensor: Any) -> str | None:
    found: str | None = getattr(tensor, _MADE_BY, None)
    return found


def use_of(func: Any, args: Sequence[Any]) -> tuple[str, int] | None:
    """The module whose output an ATen call views in groups, and their number; 0 where it cuts it; None: neither."""
    if func not in _VIEWS and func not in _CUTS:
        return None
    given: Any = args[0]
    name = maker(given)
    if name is None or not given.dim():
        return None
    if func in _VIEWS:
        groups = groups_of(given.shape, args[1])
        return (name, groups) if groups else None
    dim = args[_CUTS[func]] if len(args) > _CUTS[func] else 0
    if dim % given.dim() != given.dim() - 1 or _is_all(func, args, given.shape[-1]):
        return None
    return name, 0


def _is_all(func: Any, args: Sequence[Any], length: int) -> bool:
    if func is _aten.slice.Tensor:
        begin, end, step = (*args[2:], None, None, 1)[:3] if len(args) < 5 else args[2:5]
        return not begin and (end is None or end >= length) and step == 1
    return func is _aten.split.Tensor and bool(args[1] >= length)


def groups_of(before: Sequence[int], after: Sequence[int]) -> int:
    """Into how many groups a view divides the last dimension: the first of the dimensions that take its place. 0: none."""
    before, after = list(before), list(after)
    if after.count(-1) == 1:
        known = math.prod(size for size in after if size != -1)
        after[after.index(-1)] = math.prod(before) // known if known else 0
    width = before[-1]
    for at in range(len(after) - 2, -1, -1):
        if math.prod(after[at:]) == width and after[at] > 1 and math.prod(after[at + 1 :]) > 1:
            return after[at]
    return 0
