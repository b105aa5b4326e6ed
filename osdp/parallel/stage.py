"""Stage: torch's, which leaves the model as it was where torch runs it to learn what passes between stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.pipelining import PipelineStage

from osdp.parallel.stand_in import Passing


class Stage(PipelineStage):
    """Before the first step torch runs the stage on values that nobody gave: a batch norm would learn them."""

    passing: Passing | None = None

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with _buffers_kept(self.submod), self._calls():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with _buffers_kept(self.submod), self._calls():
            return super()._prepare_backward_infra(*args, **kwargs)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._calls():
            return super().forward_one_chunk(*args, **kwargs)

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Context in which the stage's forward is called by torch's schedule, not by a script."""
        passing = self.passing or Passing(0)
        before, passing.in_schedule = passing.in_schedule, True
        try:
            yield
        finally:
            passing.in_schedule = before


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Context in which buffers are copies: what autograd saves of them stays as it was."""
    held = [(m, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None]
    for holder, name, buffer in held:
        holder._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for holder, name, buffer in held:
            holder._buffers[name] = buffer
