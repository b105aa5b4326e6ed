"""Stage: torch's, which tells the model's stand-ins when it runs, also where torch learns what passes between stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from osdp.parallel.other_stage import Passing


class Stage(PipelineStage):
    passing: Passing | None = None

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        with self._calls():
            return super()._prepare_forward_infra(*args, **kwargs)

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        like = self.passing.like if self.passing is not None else None
        with self._calls(), self._recomputing(like):
            return super()._prepare_backward_infra(*args, **kwargs)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._calls():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        passed: Any = self.fwd_cache.get(bwd_chunk_id, ((None,), (None,)))[0 if self.is_first else 1]
        with self._recomputing(passed[0]):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    @contextmanager
    def _recomputing(self, passed: Tensor | None) -> Iterator[None]:
        """Context of a backward, in which a script's checkpoints may run parts of forward: Note [Recomputed stages]."""
        passing = self.passing or Passing(0)
        passing.recomputes = passed
        try:
            yield
        finally:
            passing.recomputes = None

    @contextmanager
    def _calls(self) -> Iterator[None]:
        """Context in which the stage's forward is called by torch's schedule, not by a script."""
        passing = self.passing or Passing(0)
        before, passing.in_schedule = passing.in_schedule, True
        try:
            yield
        finally:
            passing.in_schedule = before
