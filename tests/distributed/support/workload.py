"""Workload: a model, its data and its loss, with nothing about ranks in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = tuple[tuple[Any, ...], torch.Tensor]  # the model's arguments, and the target


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target)


@dataclass(frozen=True)
class Workload:
    """`build` and `batch` draw from torch's generator; `loss` is a mean over the samples (dimension 0)."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = squares

    def model(self, seed: int, dtype: torch.dtype) -> nn.Module:
        _seed(seed)
        return self.build().to(dtype)

    def data(self, seed: int, samples: int, dtype: torch.dtype) -> Batch:
        _seed(seed)
        arguments, target = self.batch(samples)
        return tuple(_cast(a, dtype) for a in arguments), _cast(target, dtype)


def _seed(seed: int) -> None:
    """torch.manual_seed of the CPU alone: that also notes, for a CUDA that is never asked for, who called it (2 ms)."""
    torch.default_generator.manual_seed(seed)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@functools.cache  # equal workloads are described once
def vectors(width_in: int, width_out: int) -> Callable[[int], Batch]:
    """Random vectors [samples, width_in] with random targets [samples, width_out]."""
    return lambda samples: ((torch.randn(samples, width_in),), torch.randn(samples, width_out))
