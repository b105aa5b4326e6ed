"""The planner's search (csrc/search)."""

from collections.abc import Sequence
from typing import Any

ANY_TRANSIENT: int

class InvalidProblem(ValueError): ...

class Tensor:
    def __init__(self, rows: int, row_bytes: int, trainable: bool, shardable: bool) -> None: ...

class Operator:
    name: str
    tensors: list[Tensor]
    split_tensor: int
    out_features: int
    in_features: int
    calls: int
    block: int
    saved_bytes_per_sample: int
    saved_bytes_fixed: int
    compute_s_per_sample: float
    compute_s_fixed: float
    recompute_s_per_sample: float

class Model:
    def __init__(
        self,
        operators: Sequence[Operator],
        blocks: Sequence[tuple[str, int, int]],
        kinds: int,
        input_bytes_per_sample: int,
    ) -> None: ...
    @property
    def block_kinds(self) -> list[int]: ...

class Request:
    def __init__(
        self,
        *,
        cost: str,
        modes: Sequence[int],
        granularities: Sequence[int],
        optimizer_bytes_per_parameter_byte: int,
        bucket_bytes: int,
        slice_overhead_s: float,
        ranks: int,
        collectives: Sequence[tuple[float, float]],
        optimizer_s_per_byte: float,
        limit_bytes: int,
        batches: Sequence[tuple[int, int]],
        recompute: Sequence[int],
        least_transient_bytes: int,
        depth_first: bool,
    ) -> None: ...

def solve(
    options: Sequence[Sequence[tuple[int, int]]],
    limit: int,
    method: str,
    time_limit_s: float,
    names: Sequence[str],
) -> dict[str, Any]: ...
def check(
    options: Sequence[Sequence[tuple[int, int]]],
    limit: int,
    choices: Sequence[int],
    time: int,
    memory: int,
    lower_bound: int,
    multiplier: tuple[int, int],
) -> str: ...
def proven_lower_bound(
    options: Sequence[Sequence[tuple[int, int]]], limit: int, multiplier: tuple[int, int]
) -> int: ...
def schedule(model: Model, request: Request, time_limit_s: float) -> dict[str, Any]: ...
def make_knapsack(
    model: Model,
    request: Request,
    batch: tuple[int, int],
    recompute: Sequence[int],
    transient_bytes: int,
) -> dict[str, Any]: ...
