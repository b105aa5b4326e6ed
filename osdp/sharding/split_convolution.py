"""The call of an nn.Conv1d, 2d or 3d in slices of its outputs. How it works: docs/splitting.md."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from osdp._C import SplitConvolution

__all__ = ["SplitConvolution", "split_convolution"]


def split_convolution(
    conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, sizes: Sequence[int], granularity: int, source: int
) -> SplitConvolution:
    """What takes the place of `conv.forward`, where the whole weight has `sizes`; `source`: see `register_source`."""
    # By dimension from the last one to the first, before and after: as torch.nn.functional.pad takes it.
    around = list(conv._reversed_padding_repeated_twice)
    padding, pad = [0] * len(conv.stride), around  # "same" with an even kernel, or what repeats the input
    if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
        padding, pad = list(conv.padding), []
    elif conv.padding_mode == "zeros" and around[::2] == around[1::2]:
        padding, pad = around[::-2], []
    return SplitConvolution(
        conv.weight,
        conv.bias,
        list(sizes),
        list(conv.stride),
        padding,
        list(conv.dilation),
        pad,
        "constant" if conv.padding_mode == "zeros" else conv.padding_mode,
        granularity,
        source,
        conv._parameters,
    )
