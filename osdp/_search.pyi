"""
The planner's search (csrc/search). Use osdp.solve and osdp.search.
"""

from __future__ import annotations

import collections.abc
import typing

import typing_extensions

__all__: list[str] = [
    "ALGORITHMS",
    "Answer",
    "Batch",
    "Candidate",
    "Choice",
    "Collective",
    "DEFAULT_TIME_LIMIT_S",
    "Device",
    "IndexedPlans",
    "InvalidProblem",
    "MODES",
    "MOST_BATCH",
    "Manner",
    "MemoryPoint",
    "ModeTraits",
    "Model",
    "OBJECTIVES",
    "Operator",
    "OptimizerState",
    "PassEvent",
    "Place",
    "Plan",
    "Planner",
    "PlayedSchedule",
    "PlayedStep",
    "Proof",
    "Protocol",
    "RECOMPUTES",
    "Request",
    "SCHEDULES",
    "SPLITS",
    "Schedule",
    "Solution",
    "StageTimes",
    "Tensor",
    "Timeline",
    "TimelineEvent",
    "Wish",
    "built_with",
    "candidates",
    "check",
    "check_plan",
    "check_table",
    "collective_s",
    "group_units",
    "most_in_flight",
    "part_of_manner",
    "part_of_model",
    "play_schedule",
    "proven_bound_ps",
    "proven_lower_bound",
    "schedule",
    "slices_fit",
    "solve",
    "solve_table",
    "traits",
]

class InvalidProblem(ValueError):
    pass

class ModeTraits:
    @property
    def by_hosts(self) -> bool: ...
    @property
    def inside_hosts(self) -> bool: ...
    @property
    def kept(self) -> bool: ...
    @property
    def on_host(self) -> bool: ...
    @property
    def reduced_between(self) -> bool:
        """
        Whether it tells hosts apart: gradients are reduced inside hosts first, then between.
        """
    @property
    def second(self) -> bool: ...
    @property
    def sharded(self) -> bool: ...
    @property
    def sliced(self) -> bool: ...

class Tensor:
    """
    A parameter: `rows` of `row_bytes` each.
    """
    def __init__(
        self,
        *,
        rows: typing.SupportsInt | typing.SupportsIndex,
        row_bytes: typing.SupportsInt | typing.SupportsIndex,
        trainable: bool,
        shardable: bool,
        compute_row_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        reduce_row_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
        item_bytes: typing.SupportsInt | typing.SupportsIndex = 4,
    ) -> None: ...

class Operator:
    name: str
    def __init__(self) -> None: ...
    @property
    def backward_work_bytes_fixed(self) -> int: ...
    @backward_work_bytes_fixed.setter
    def backward_work_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def backward_work_bytes_per_sample(self) -> int: ...
    @backward_work_bytes_per_sample.setter
    def backward_work_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
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
    def convolution(self) -> bool:
        """
        The weight to split is a convolution's, [out, in, ...], with slices of its outputs alone.
        """
    @convolution.setter
    def convolution(self, arg0: bool) -> None: ...
    @property
    def forward_work_bytes_fixed(self) -> int: ...
    @forward_work_bytes_fixed.setter
    def forward_work_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def forward_work_bytes_per_sample(self) -> int: ...
    @forward_work_bytes_per_sample.setter
    def forward_work_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def in_features(self) -> int: ...
    @in_features.setter
    def in_features(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def look_ups(self) -> int:
        """
        Places, the first ones, that look rows of the table up.
        """
    @look_ups.setter
    def look_ups(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def out_features(self) -> int: ...
    @out_features.setter
    def out_features(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def places(self) -> int: ...
    @places.setter
    def places(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def recompute_s_fixed(self) -> float: ...
    @recompute_s_fixed.setter
    def recompute_s_fixed(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def recompute_s_per_sample(self) -> float: ...
    @recompute_s_per_sample.setter
    def recompute_s_per_sample(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def rows_per_sample(self) -> int: ...
    @rows_per_sample.setter
    def rows_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def saved_bytes_fixed(self) -> int: ...
    @saved_bytes_fixed.setter
    def saved_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def saved_bytes_per_sample(self) -> int: ...
    @saved_bytes_per_sample.setter
    def saved_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def slices_s(self) -> list[tuple[int, float]]: ...
    @slices_s.setter
    def slices_s(
        self,
        arg0: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]
        ],
    ) -> None: ...
    @property
    def split_tensor(self) -> int: ...
    @split_tensor.setter
    def split_tensor(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    @tensors.setter
    def tensors(self, arg0: collections.abc.Sequence[Tensor]) -> None: ...
    @property
    def transposed(self) -> bool:
        """
        The weight to split is stored as [in, out].
        """
    @transposed.setter
    def transposed(self, arg0: bool) -> None: ...
    @property
    def waiting_gradient_bytes(self) -> int: ...
    @waiting_gradient_bytes.setter
    def waiting_gradient_bytes(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def work_bytes_fixed(self) -> int: ...
    @work_bytes_fixed.setter
    def work_bytes_fixed(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def work_bytes_per_sample(self) -> int: ...
    @work_bytes_per_sample.setter
    def work_bytes_per_sample(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Model:
    """
    `blocks`: name and bytes of its input for each sample.
    """
    def __init__(
        self,
        operators: collections.abc.Sequence[Operator],
        blocks: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex]],
        input_bytes_per_sample: typing.SupportsInt | typing.SupportsIndex,
        buffer_bytes: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class Collective:
    """
    A ring step takes alpha_s + bytes beta_s_per_byte.
    """
    def __init__(
        self,
        alpha_s: typing.SupportsFloat | typing.SupportsIndex,
        beta_s_per_byte: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

class Protocol:
    """
    A way in which NCCL runs collectives.
    """
    def __init__(
        self,
        algorithm: str,
        base_s: typing.SupportsFloat | typing.SupportsIndex,
        inner_hop_s: typing.SupportsFloat | typing.SupportsIndex,
        outer_hop_s: typing.SupportsFloat | typing.SupportsIndex,
        bandwidth_share: typing.SupportsFloat | typing.SupportsIndex,
        most_bytes_per_s: typing.SupportsFloat | typing.SupportsIndex,
    ) -> None: ...

class Device:
    def __init__(
        self,
        *,
        ranks: typing.SupportsInt | typing.SupportsIndex,
        hosts: typing.SupportsInt | typing.SupportsIndex,
        all_gather: Collective,
        reduce_scatter: Collective,
        all_reduce: Collective,
        between_hosts: Collective,
        exposed: typing.SupportsFloat | typing.SupportsIndex,
        optimizer_s_per_byte: typing.SupportsFloat | typing.SupportsIndex,
        recompute_slowdown: typing.SupportsFloat | typing.SupportsIndex,
        protocols: collections.abc.Sequence[Protocol] = [],
        host_copy: Collective = ...,
        host_optimizer_s_per_byte: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> None: ...

class Batch:
    """
    Samples per rank, and how many such micro-batches make a step.
    """
    def __init__(
        self,
        size: typing.SupportsInt | typing.SupportsIndex,
        accumulation: typing.SupportsInt | typing.SupportsIndex = 1,
    ) -> None: ...
    def samples(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def size(self) -> int: ...

class OptimizerState:
    """
    What an optimizer keeps of a tensor, in bytes.
    """
    def __init__(
        self,
        copies: typing.SupportsInt | typing.SupportsIndex,
        per_256: typing.SupportsInt | typing.SupportsIndex = 0,
        small: typing.SupportsInt | typing.SupportsIndex = 0,
        small_item: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...

class Request:
    """
    What is searched for; without `batches`, every size that fits.
    """
    def __init__(
        self,
        *,
        device: Device,
        paper: bool,
        modes: collections.abc.Sequence[str],
        granularities: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        prefetches: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        optimizer: OptimizerState,
        bucket_bytes: typing.SupportsInt | typing.SupportsIndex,
        slice_overhead_s: typing.SupportsFloat | typing.SupportsIndex,
        recompute: collections.abc.Sequence[str],
        find_smallest: bool = False,
        depth_first: bool,
        smallest_first: bool,
        in_flight: typing.SupportsInt | typing.SupportsIndex = 1,
        stage_micro_batches: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @property
    def batches(self) -> list[Batch]: ...
    @batches.setter
    def batches(self, arg0: collections.abc.Sequence[Batch]) -> None: ...
    @property
    def device(self) -> Device: ...
    @property
    def limit_bytes(self) -> int: ...
    @limit_bytes.setter
    def limit_bytes(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Choice:
    """
    How an operator is sharded; of one without parameters: ignored.
    """
    def __init__(
        self,
        mode: str = "NO_SHARD",
        granularity: typing.SupportsInt | typing.SupportsIndex = 1,
        sharded_slices: typing.SupportsInt | typing.SupportsIndex = 0,
        split: str = "none",
    ) -> None: ...
    @property
    def granularity(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def sharded_slices(self) -> int: ...
    @property
    def split(self) -> str: ...

class Plan:
    """
    Choices beside the model's operators, recomputation beside its blocks.
    """
    def __init__(
        self,
        batch: Batch,
        choices: collections.abc.Sequence[Choice],
        blocks: collections.abc.Sequence[str],
        prefetch: typing.SupportsInt | typing.SupportsIndex = 1,
        gather_bytes: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @property
    def batch(self) -> Batch: ...
    @property
    def blocks(self) -> list[str]: ...
    @property
    def choices(self) -> list[Choice]: ...
    @property
    def gather_bytes(self) -> int: ...
    @property
    def prefetch(self) -> int: ...

class Candidate:
    """
    One way to treat one operator, and what it costs.
    """
    def is_choice(self, choice: Choice) -> bool: ...
    @property
    def choice(self) -> Choice: ...
    @property
    def communication_ps(self) -> int: ...
    @property
    def gathered_bytes(self) -> int: ...
    @property
    def gradient_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def host_bytes(self) -> int: ...
    @property
    def optimizer_ps(self) -> int: ...
    @property
    def state_bytes(self) -> int: ...
    @property
    def transient_bytes(self) -> int: ...
    @property
    def whole_gradient_bytes(self) -> int: ...

class Place:
    """
    What of an operator decides with whom it travels.
    """
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

class Manner:
    """
    How the runtime carries plans out.
    """
    def __init__(
        self,
        *,
        places: collections.abc.Sequence[Place],
        small_unit_bytes: typing.SupportsInt | typing.SupportsIndex,
        separate_reductions: bool,
        enqueue: bool,
        delay: Collective,
        stolen_permille: typing.SupportsInt | typing.SupportsIndex,
    ) -> None: ...

class MemoryPoint:
    """
    From this moment on.
    """
    @property
    def bytes(self) -> int: ...
    @property
    def time_ps(self) -> int: ...

class PlayedStep:
    @property
    def both_ps(self) -> int: ...
    @property
    def memory(self) -> list[MemoryPoint]: ...
    @property
    def only_communicating_ps(self) -> int: ...
    @property
    def only_computing_ps(self) -> int: ...
    @property
    def optimizer_ps(self) -> int: ...
    @property
    def passes_ps(self) -> list[int]:
        """
        Forward and backward of each micro-batch that was played: of many, the first three.
        """
    @property
    def peak_bytes(self) -> int: ...
    @property
    def step_ps(self) -> int: ...
    @property
    def tails_ps(self) -> list[int]:
        """
        Of each backward, the end in which it waits for communication alone.
        """

class TimelineEvent:
    @property
    def action(self) -> str: ...
    @property
    def begin_ps(self) -> int: ...
    @property
    def end_ps(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def resource(self) -> str: ...

class Timeline:
    @property
    def events(self) -> list[TimelineEvent]: ...
    @property
    def largest_peak_bytes(self) -> int: ...
    @property
    def step(self) -> PlayedStep: ...

class Wish:
    find_smallest: bool
    def __init__(
        self,
        *,
        limit_bytes: typing.SupportsInt | typing.SupportsIndex,
        batches: collections.abc.Sequence[Batch],
        objective: typing.SupportsInt | typing.SupportsIndex = 0,
        at_least: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        gap: typing.SupportsFloat | typing.SupportsIndex = 0.005,
        time_limit_s: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        work: typing.SupportsInt | typing.SupportsIndex = 500000000,
        played_operators: typing.SupportsInt | typing.SupportsIndex = 400000,
    ) -> None: ...
    @property
    def played_operators(self) -> int: ...
    @played_operators.setter
    def played_operators(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def time_limit_s(self) -> float: ...
    @time_limit_s.setter
    def time_limit_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
    @property
    def work(self) -> int: ...
    @work.setter
    def work(self, arg0: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class Proof:
    @property
    def attained(self) -> bool: ...
    @property
    def lower_bound_s_per_sample(self) -> float: ...
    @property
    def parts(self) -> list[tuple[int, int, int, list[tuple[int, float]]]]:
        """
        Batch sizes from and to, accumulation, prices as phase and ps per byte.
        """
    @property
    def shares(self) -> tuple[int, int, int, int, int]: ...

class Answer:
    def __init__(
        self,
        *,
        plan: Plan,
        peak_bytes: typing.SupportsInt | typing.SupportsIndex,
        limit_bytes: typing.SupportsInt | typing.SupportsIndex,
        played: PlayedStep,
        proof: Proof = ...,
    ) -> None:
        """
        That of a plan which was found otherwise, with what another answer proves of all.
        """
    def throughput(self, ranks: typing.SupportsInt | typing.SupportsIndex) -> float: ...
    @property
    def feasible(self) -> bool: ...
    @property
    def interrupted(self) -> bool: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def out_of_time(self) -> bool: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def played(self) -> PlayedStep: ...
    @property
    def proof(self) -> Proof: ...
    @property
    def smallest_limit_bytes(self) -> int: ...
    @property
    def step_bound_ps(self) -> int: ...

class Schedule:
    @property
    def batch(self) -> Batch: ...
    @property
    def blocks(self) -> list[str]: ...
    @property
    def feasible(self) -> bool: ...
    @property
    def leaves(self) -> int: ...
    @property
    def lower_bound_s_per_sample(self) -> float: ...
    @property
    def optimal(self) -> bool: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def regions(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def step_ps(self) -> int: ...

class Planner:
    """
    Everything of a search but its wish.
    """
    def __init__(
        self, model: Model, request: Request, manner: Manner, times_at: collections.abc.Callable | None = None
    ) -> None:
        """
        `times_at`: the model at a batch, if operators' times are no lines in that.
        """
    def any_plan(self, wish: Wish) -> Answer: ...
    def bound_request(
        self,
        shares: typing.Annotated[
            collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], "FixedSize(5)"
        ],
        limit_bytes: typing.SupportsInt | typing.SupportsIndex,
        batches: collections.abc.Sequence[Batch],
    ) -> Request:
        """
        For proven_bound_ps.
        """
    def frontier(
        self,
        wish: Wish,
        limits: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        progress: typing.Any = None,
    ) -> list[Answer]: ...
    def largest_peak(self, plan: Plan) -> int:
        """
        The most that its step may hold, in bytes, however long its communication takes.
        """
    def play(self, plan: Plan) -> PlayedStep:
        """
        Its step without events and memory.
        """
    def prove(self, wish: Wish, thorough: bool = False) -> Proof:
        """
        A bound on the step of every plan under the wish's limit. `thorough`: parts of the space are searched for longer at once.
        """
    def request(self, limit_bytes: typing.SupportsInt | typing.SupportsIndex = 0) -> Request: ...
    def search(self, wish: Wish, progress: typing.Any = None) -> Answer:
        """
        `progress` is called about five times a second with how far the best plan is above its bound, as a share of its time (1: no plan yet).
        """
    def timeline(
        self,
        plan: Plan,
        units: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]],
    ) -> Timeline: ...
    def units(self, plan: Plan) -> list[list[int]]: ...
    def useful_limits(self, wish: Wish) -> tuple[int, int]:
        """
        (least, most) bytes that are worth looking at.
        """
    @property
    def model(self) -> Model: ...

class IndexedPlans:
    def __init__(self, planner: Planner, limit_bytes: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def largest_peak_bytes(
        self,
        batch: Batch,
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[str],
        prefetch: typing.SupportsInt | typing.SupportsIndex = 1,
    ) -> int:
        """
        Of its own step, with the memory for gathered units that the limit leaves.
        """
    def peak_bytes(
        self,
        batch: Batch,
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[str],
        prefetch: typing.SupportsInt | typing.SupportsIndex = 1,
    ) -> int:
        """
        The sum that searches compare with a limit.
        """
    def step_ps(
        self,
        batch: Batch,
        choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
        blocks: collections.abc.Sequence[str],
        prefetch: typing.SupportsInt | typing.SupportsIndex = 1,
    ) -> int:
        """
        Of a whole step, played.
        """

class Solution:
    @property
    def choices(self) -> list[int]: ...
    @property
    def groups(self) -> int: ...
    @property
    def lower_bound(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def multiplier(self) -> tuple[int, int]: ...
    @property
    def nodes(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def smallest_limit(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def time(self) -> int: ...

class StageTimes:
    """
    What a stage of a pipeline takes, in picoseconds.
    """
    def __init__(
        self,
        *,
        first_forward_ps: typing.SupportsInt | typing.SupportsIndex,
        forward_ps: typing.SupportsInt | typing.SupportsIndex,
        backward_ps: typing.SupportsInt | typing.SupportsIndex,
        last_backward_ps: typing.SupportsInt | typing.SupportsIndex,
        optimizer_ps: typing.SupportsInt | typing.SupportsIndex,
        send_activations_ps: typing.SupportsInt | typing.SupportsIndex = 0,
        send_gradients_ps: typing.SupportsInt | typing.SupportsIndex = 0,
        backward_tail_ps: typing.SupportsInt | typing.SupportsIndex = 0,
        last_backward_tail_ps: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    @property
    def backward_ps(self) -> int: ...
    @property
    def backward_tail_ps(self) -> int: ...
    @property
    def first_forward_ps(self) -> int: ...
    @property
    def forward_ps(self) -> int: ...
    @property
    def last_backward_ps(self) -> int: ...
    @property
    def last_backward_tail_ps(self) -> int: ...
    @property
    def optimizer_ps(self) -> int: ...

class PassEvent:
    """
    One pass of one micro-batch through a stage.
    """
    @property
    def begin_ps(self) -> int: ...
    @property
    def end_ps(self) -> int: ...
    @property
    def forward(self) -> bool: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def stage(self) -> int: ...

class PlayedSchedule:
    @property
    def busy_ps(self) -> list[int]: ...
    @property
    def events(self) -> list[PassEvent]: ...
    @property
    def step_ps(self) -> int: ...

def built_with() -> str:
    """
    The version of torch that the extension was compiled against.
    """

def candidates(
    model: Model, request: Request, operator: typing.SupportsInt | typing.SupportsIndex, recompute: str
) -> list[Candidate]:
    """
    Of one operator, NO_SHARD first, with the bytes that the runtime keeps.
    """

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
    plan: Plan,
    step_ps: typing.SupportsInt | typing.SupportsIndex,
    peak_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> str:
    """
    Empty if it holds, else what is false.
    """

def check_table(
    table: typing_extensions.Buffer,
    limit: typing.SupportsInt | typing.SupportsIndex,
    choices: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    time: typing.SupportsInt | typing.SupportsIndex,
    memory: typing.SupportsInt | typing.SupportsIndex,
    lower_bound: typing.SupportsInt | typing.SupportsIndex,
    multiplier: tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex],
) -> str: ...
def collective_s(device: Device, kind: str, bytes: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    Seconds of one collective of so many bytes over all ranks.
    """

def group_units(
    places: collections.abc.Sequence[Place],
    choices: collections.abc.Sequence[Choice],
    bucket_bytes: typing.SupportsInt | typing.SupportsIndex,
    small: typing.SupportsInt | typing.SupportsIndex,
    most: typing.SupportsInt | typing.SupportsIndex,
) -> list[list[int]]: ...
def most_in_flight(
    schedule: str,
    stages: typing.SupportsInt | typing.SupportsIndex,
    stage: typing.SupportsInt | typing.SupportsIndex,
    micro_batches: typing.SupportsInt | typing.SupportsIndex,
) -> int:
    """
    Micro-batches whose activations a stage holds at most.
    """

def part_of_manner(
    manner: Manner, chosen: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]
) -> Manner: ...
def part_of_model(
    model: Model,
    chosen: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    input_bytes_per_sample: typing.SupportsInt | typing.SupportsIndex,
    buffer_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> Model:
    """
    The operators at these positions, and the blocks that they are in.
    """

def play_schedule(
    schedule: str,
    stages: collections.abc.Sequence[StageTimes],
    micro_batches: typing.SupportsInt | typing.SupportsIndex,
    record: bool = False,
    cores: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [1000],
) -> PlayedSchedule:
    """
    A step of a pipeline: csrc/search/pipeline/schedule.hpp.
    """

def proven_bound_ps(
    model: Model,
    request: Request,
    samples: typing.SupportsInt | typing.SupportsIndex,
    parts: collections.abc.Sequence[
        tuple[
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            typing.SupportsInt | typing.SupportsIndex,
            collections.abc.Sequence[
                tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
            ],
        ]
    ],
    denominator: typing.SupportsInt | typing.SupportsIndex,
) -> int:
    """
    What these prices of memory prove of a step of any plan that fits. Parts: batch sizes from and to, accumulation, prices as phase and numerator.
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
def schedule(
    model: Model, request: Request, time_limit_s: typing.SupportsFloat | typing.SupportsIndex
) -> Schedule:
    """
    The search of one objective alone, for benchmarks.
    """

def slices_fit(
    length: typing.SupportsInt | typing.SupportsIndex,
    granularity: typing.SupportsInt | typing.SupportsIndex,
    by_rows: bool,
) -> bool:
    """
    Whether a dimension of that length can be cut into `granularity` slices. `by_rows`: of the weight as it is stored, which may leave a rest.
    """

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
) -> Solution: ...
def solve_table(
    table: typing_extensions.Buffer,
    limit: typing.SupportsInt | typing.SupportsIndex,
    method: str,
    time_limit_s: typing.SupportsFloat | typing.SupportsIndex,
    names: collections.abc.Sequence[str],
    gap: typing.SupportsFloat | typing.SupportsIndex,
    state_bytes: typing.SupportsInt | typing.SupportsIndex,
) -> Solution: ...
def traits(mode: str) -> ModeTraits:
    """
    Of a mode, by its name.
    """

ALGORITHMS: tuple = ("ring", "tree", "in-switch")
DEFAULT_TIME_LIMIT_S: float = 10.0
MODES: tuple = (
    "NO_SHARD",
    "SHARD_GRAD_OP",
    "FULL_SHARD",
    "HYBRID_SHARD",
    "FULL_SHARD_OFFLOAD",
    "HYBRID_SHARD_OFFLOAD",
    "FULL_SHARD_HIERARCHICAL",
    "FULL_SHARD_HPZ",
)
MOST_BATCH: int = 65536
OBJECTIVES: tuple = ("throughput", "memory", "batch")
RECOMPUTES: tuple = ("none", "hold", "regather")
SCHEDULES: tuple = ("1f1b", "gpipe")
SPLITS: tuple = ("none", "out", "in")
