"""
Element-wise kernels, single-threaded on the CPU.
"""

from __future__ import annotations

import typing

import torch

__all__: list[str] = ["accumulate", "built_with_cuda", "cast", "pack", "scale", "unpack", "zero"]

def accumulate(
    dst: torch.Tensor, src: torch.Tensor, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0
) -> None:
    """
    dst += scale * src.
    """

def built_with_cuda() -> bool: ...
def cast(dst: torch.Tensor, src: torch.Tensor) -> None:
    """
    dst = src, rounded to nearest even.
    """

def pack(dst: torch.Tensor, src: torch.Tensor) -> None:
    """
    Contiguous dst = a column range src.
    """

def scale(dst: torch.Tensor, factor: typing.SupportsFloat | typing.SupportsIndex) -> None:
    """
    dst *= factor.
    """

def unpack(dst: torch.Tensor, src: torch.Tensor) -> None:
    """
    A column range dst = contiguous src.
    """

def zero(dst: torch.Tensor) -> None:
    """
    dst = 0.
    """
