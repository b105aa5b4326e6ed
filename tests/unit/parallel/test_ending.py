"""An error in a pipeline's step says which stage this rank has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from osdp.errors import OrderError
from osdp.parallel.ending import end_of_pipeline


def test_an_error_of_a_stage_names_it():
    plan: Any = SimpleNamespace(stages=("first", "second"), data_parallel=2, tensor_parallel=2)
    error = OrderError("rank 0 waits at '0 all-gather'")
    for _ in range(2):  # it passes twice where a script tries again
        assert end_of_pipeline(plan, 1, SimpleNamespace(), error) is error
    (note,) = error.__notes__
    assert note == "This rank has stage 1 of 2; stage 0 is on ranks 0 to 3, stage 1 is on ranks 4 to 7."
