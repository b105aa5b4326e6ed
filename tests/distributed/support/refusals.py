"""Passes that fail where a test wants them to."""

from __future__ import annotations

from typing import Any

import torch


class Refusal(Exception):
    pass


class RefusesBackward(torch.autograd.Function):
    """The identity; its backward raises."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise Refusal("backward")
