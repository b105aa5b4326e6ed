"""MeanLoss: a loss of micro-batches, as torch's schedules call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from osdp.base.tensor_trees import map_tensors

NOTHING = object()  # as a target: no loss is computed


class MeanLoss:
    """`loss_fn`, whose gradients are those of the mean over all micro-batches.

    torch's schedules divide one tensor of targets; within `of`, they get positions of samples instead, so targets may be
    None, or any tree of tensors.
    """

    def __init__(self, loss_fn: Callable[[Any, Any], Tensor], micro_batches: int) -> None:
        self._loss_fn, self._micro_batches = loss_fn, micro_batches
        self._targets: list[Any] = []

    @contextmanager
    def of(self, target: Any, samples: int) -> Iterator[Tensor]:
        """What a schedule gets as its target."""
        self._targets.append(target)
        try:
            yield torch.arange(samples)
        finally:
            self._targets.pop()

    def __call__(self, output: Tensor, target: Any) -> Tensor:
        if self._targets:
            if self._targets[-1] is NOTHING:
                return torch.zeros(())
            first, end = int(target[0]), int(target[-1]) + 1
            target = map_tensors(lambda t: t[first:end] if t.dim() else t, self._targets[-1])
        value = self._loss_fn(output, target)
        if value.requires_grad:
            count = self._micro_batches
            value.register_hook(lambda gradient: gradient / count)  # type: ignore[no-untyped-call]
        return value
