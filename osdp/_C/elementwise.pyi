"""
Casts, sums and scalings on the calling thread, of contiguous tensors in host memory with equal numbers of elements (else ValueError), in fp32, fp64, fp16 or bf16 (else TypeError).
"""

from __future__ import annotations

import typing

import torch

__all__: list[str] = ["accumulate", "cast", "scale"]

def accumulate(
    dst: torch.Tensor, src: torch.Tensor, factor: typing.SupportsFloat | typing.SupportsIndex = 1.0
) -> None:
    """
    dst += factor * src.
    """

def cast(dst: torch.Tensor, src: torch.Tensor) -> None:
    """
    dst = src, rounded to nearest even.
    """

def scale(dst: torch.Tensor, factor: typing.SupportsFloat | typing.SupportsIndex) -> None:
    """
    dst *= factor.
    """
