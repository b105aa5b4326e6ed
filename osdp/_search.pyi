"""
The planner's search (csrc/search). Use osdp.solve and osdp.search.
"""

from __future__ import annotations

import collections.abc
import typing

import typing_extensions

__all__: list[str] = [
    "InvalidProblem",
    "JsonError",
    "JsonLimits",
    "JsonReader",
    "JsonShape",
    "Model",
    "Operator",
    "Place",
    "Rehearsal",
    "Request",
    "Tensor",
    "built_with",
    "candidates",
    "check",
    "check_plan",
    "check_table",
    "find_json",
    "group_units",
    "plan_lower_bound",
    "polish",
    "proven_lower_bound",
    "read_json",
    "schedule",
    "simulate",
    "solve",
    "solve_table",
]

class Tensor:
    def __init__(
        self,
        rows: typing.SupportsInt | typing.SupportsIndex,
        row_bytes: typing.SupportsInt | typing.SupportsIndex,
        trainable: bool,
        shardable: bool,
        compute_row_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        reduce_row_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...

class Operator:
    name: str
    def __init__(self) -> None: ...
    @property
    def block(self) -> int: ...
    @block.setter
    def block(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def calls(self) -> int: ...
    @calls.setter
    def calls(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def compute_s_fixed(self) -> float: ...
    @compute_s_fixed.setter
    def compute_s_fixed(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def compute_s_per_sample(self) -> float: ...
    @compute_s_per_sample.setter
    def compute_s_per_sample(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def in_features(self) -> int: ...
    @in_features.setter
    def in_features(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def out_features(self) -> int: ...
    @out_features.setter
    def out_features(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def places(self) -> int: ...
    @places.setter
    def places(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def recompute_s_per_sample(self) -> float: ...
    @recompute_s_per_sample.setter
    def recompute_s_per_sample(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def saved_bytes_fixed(self) -> int: ...
    @saved_bytes_fixed.setter
    def saved_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def saved_bytes_per_sample(self) -> int: ...
    @saved_bytes_per_sample.setter
    def saved_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def split_tensor(self) -> int: ...
    @split_tensor.setter
    def split_tensor(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    @tensors.setter
    def tensors(self, arg0: collections.abc.Sequence[Tensor]) -> None: ...
    @property
    def work_bytes_fixed(self) -> int: ...
    @work_bytes_fixed.setter
    def work_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def work_bytes_per_sample(self) -> int: ...
    @work_bytes_per_sample.setter
    def work_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Model:
    def __init__(
        self,
        operators: collections.abc.Sequence[Operator],
        blocks: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex]],
        input_bytes_per_sample: typing.SupportsInt | typing.SupportsIndex,
        buffer_bytes: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class Request:
    def __init__(
        self,
        *,
        cost: str,
        modes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        granularities: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        optimizer_bytes_per_parameter_byte: typing.SupportsInt | typing.SupportsIndex,
        bucket_bytes: typing.SupportsInt | typing.SupportsIndex,
        slice_overhead_s: typing.SupportsFloat | typing.SupportsIndex,
        ranks: typing.SupportsInt | typing.SupportsIndex,
        hosts: typing.SupportsInt | typing.SupportsIndex,
        collectives: collections.abc.Sequence[
            tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]
        ],
        exposed: typing.SupportsFloat | typing.SupportsIndex,
        optimizer_s_per_byte: typing.SupportsFloat | typing.SupportsIndex,
        recompute_slowdown: typing.SupportsFloat | typing.SupportsIndex,
        limit_bytes: typing.SupportsInt | typing.SupportsIndex,
        batches: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ],
        recompute: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        least_transient_bytes: typing.SupportsInt | typing.SupportsIndex,
        buffers: typing.SupportsInt | typing.SupportsIndex,
        find_smallest: bool,
        depth_first: bool,
        smallest_first: bool,
        cost_version: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class JsonError(ValueError):
    pass

class JsonLimits:
    """
    Caps of the JSON reader (csrc/json/error.hpp).
    """
    def __init__(
        self,
        *,
        bytes: typing.SupportsInt | typing.SupportsIndex,
        depth: typing.SupportsInt | typing.SupportsIndex,
        values: typing.SupportsInt | typing.SupportsIndex,
        text_characters: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class JsonShape:
    """
    One type of a JSON schema (csrc/json/schema.hpp).
    """
    def __init__(
        self,
        *,
        kind: str,
        nullable: bool,
        items: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        names: collections.abc.Sequence[str],
        allowed: collections.abc.Sequence[str],
        minimum: typing.SupportsFloat | typing.SupportsIndex | None,
        above_minimum: bool,
    ) -> None: ...

class JsonReader:
    """
    Reads files of one kind into values of their classes.
    """
    def __init__(
        self,
        *,
        kind: str,
        version: typing.SupportsInt | typing.SupportsIndex,
        shapes: collections.abc.Sequence[JsonShape],
        classes: collections.abc.Sequence[typing.Any],
    ) -> None: ...
    def read(self, text: bytes, limits: JsonLimits) -> tuple[int, typing.Any]:
        """
        The file's version, and its value; of an older version what `read_json` gives, unchecked.
        """
    def version(self, text: bytes, limits: JsonLimits) -> int:
        """
        The version that the file's header says.
        """

class Place:
    @typing.overload
    def __init__(self) -> None:
        """
        Of an operator without parameters.
        """
    @typing.overload
    def __init__(
        self,
        *,
        bytes: typing.SupportsInt | typing.SupportsIndex,
        gathered_bytes: typing.SupportsInt | typing.SupportsIndex,
        dtype: typing.SupportsInt | typing.SupportsIndex,
        mixed: bool,
        block: typing.SupportsInt | typing.SupportsIndex,
        gathered_at: typing.SupportsInt | typing.SupportsIndex,
        modules: typing.SupportsInt | typing.SupportsIndex,
        traced: bool,
        calls: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ],
        repeats: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class Rehearsal:
    def __init__(
        self,
        model: Model,
        request: Request,
        *,
        places: collections.abc.Sequence[Place],
        small_unit_bytes: typing.SupportsInt | typing.SupportsIndex,
        prefetch: typing.SupportsInt | typing.SupportsIndex,
        lanes: tuple[bool, bool],
        delay: tuple[
            typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex
        ],
        stolen_permille: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...
    def objective_ps(
        self,
        batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> int:
        """
        Of a whole step, by the objective.
        """
    def peak_bytes(
        self,
        batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> int:
        """
        What the limit is held against.
        """
    def step_ps(
        self,
        batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> int:
        """
        Of a whole step, played.
        """

class InvalidProblem(ValueError):
    pass

def built_with() -> str:
    """
    The version of torch that the extension was compiled against.
    """

def candidates(
    model: Model,
    request: Request,
    operator: typing.SupportsInt | typing.SupportsIndex,
    recompute: typing.SupportsInt | typing.SupportsIndex,
) -> list: ...
def check(
    options: collections.abc.Sequence[
        collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ]
    ],
    limit: typing.SupportsInt | typing.SupportsIndex,
    choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    time: typing.SupportsInt | typing.SupportsIndex,
    memory: typing.SupportsInt | typing.SupportsIndex,
    lower_bound: typing.SupportsInt | typing.SupportsIndex,
    multiplier: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
) -> str: ...
def check_plan(
    model: Model,
    request: Request,
    batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
    choices: collections.abc.Sequence[
        tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ]
    ],
    blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    time_ps: typing.SupportsInt | typing.SupportsIndex,
    memory_bytes: typing.SupportsInt | typing.SupportsIndex,
    lower_bound_ps: typing.SupportsInt | typing.SupportsIndex,
    prices: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ],
    denominator: typing.SupportsInt | typing.SupportsIndex,
) -> str: ...
def check_table(
    table: typing_extensions.Buffer,
    limit: typing.SupportsInt | typing.SupportsIndex,
    choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    time: typing.SupportsInt | typing.SupportsIndex,
    memory: typing.SupportsInt | typing.SupportsIndex,
    lower_bound: typing.SupportsInt | typing.SupportsIndex,
    multiplier: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
) -> str: ...
def find_json(text: bytes, limits: JsonLimits, path: str) -> tuple[int, int]:
    """
    Line and column of the field that a path names.
    """

def group_units(
    places: collections.abc.Sequence[Place],
    choices: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ],
    bucket_bytes: typing.SupportsInt | typing.SupportsIndex,
    small: typing.SupportsInt | typing.SupportsIndex,
    most: typing.SupportsInt | typing.SupportsIndex,
) -> list[list[int]]: ...
def plan_lower_bound(
    model: Model,
    request: Request,
    batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
    choices: collections.abc.Sequence[
        tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ]
    ],
    blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    prices: collections.abc.Sequence[
        tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
    ],
    denominator: typing.SupportsInt | typing.SupportsIndex,
) -> int: ...
def polish(
    rehearsal: Rehearsal,
    seeds: collections.abc.Sequence[
        tuple[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        ]
    ],
    plays: typing.SupportsInt | typing.SupportsIndex,
) -> dict:
    """
    The fastest plan, played, that a local search comes to; `seeds`: batch, choices and blocks.
    """

def proven_lower_bound(
    options: collections.abc.Sequence[
        collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ]
    ],
    limit: typing.SupportsInt | typing.SupportsIndex,
    multiplier: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
) -> int: ...
def read_json(text: bytes, limits: JsonLimits) -> typing.Any:
    """
    Any JSON text as dictionaries, lists, numbers and text.
    """

def schedule(
    model: Model,
    request: Request,
    time_limit_s: typing.SupportsFloat | typing.SupportsIndex,
    gap: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    work: typing.SupportsInt | typing.SupportsIndex = 0,
) -> dict: ...
def simulate(
    model: Model,
    request: Request,
    batch: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
    choices: collections.abc.Sequence[
        tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
        ]
    ],
    blocks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    units: collections.abc.Sequence[
        tuple[
            str,
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
            collections.abc.Sequence[
                tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
            ],
            typing.SupportsInt | typing.SupportsIndex,
        ]
    ],
    prefetch: typing.SupportsInt | typing.SupportsIndex,
    lanes: tuple[bool, bool],
    delay: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex],
    stolen_permille: typing.SupportsInt | typing.SupportsIndex,
    timeline: bool,
) -> dict: ...
def solve(
    options: collections.abc.Sequence[
        collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ]
    ],
    limit: typing.SupportsInt | typing.SupportsIndex,
    method: str,
    time_limit_s: typing.SupportsFloat | typing.SupportsIndex,
    names: collections.abc.Sequence[str],
    gap: typing.SupportsFloat | typing.SupportsIndex,
    state_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> dict: ...
def solve_table(
    table: typing_extensions.Buffer,
    limit: typing.SupportsInt | typing.SupportsIndex,
    method: str,
    time_limit_s: typing.SupportsFloat | typing.SupportsIndex,
    names: collections.abc.Sequence[str],
    gap: typing.SupportsFloat | typing.SupportsIndex,
    state_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> dict: ...
