"""A model, a machine and a wish, as the planner's C++ core takes them (csrc/search/branch/schedule.hpp)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from osdp import _search
from osdp.description.model_description import ModelDescription, Operator, Parameter
from osdp.errors import InvalidProblemError
from osdp.hardware.hardware import Collective, Hardware
from osdp.plan.choice import MODES, RECOMPUTE
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import COST_VERSION
from osdp.plan.unit_grouping import BUCKET_BYTES
from osdp.plan.whole_operators import whole_operators
from osdp.planning.device_memory import Term, memory_terms

# State that the optimizer keeps, in units of the parameters' bytes.
OPTIMIZER_STATE = {"adamw": 2, "adam": 2, "sgd": 0, "sgd-momentum": 1, "rmsprop": 1, "adagrad": 1}
GRANULARITIES = (2, 4, 8, 16)
MOST_BATCH = 2**16  # csrc/search/problem/model.hpp: kMostBatch
SPLIT_CODES = (None, "out", "in")  # csrc/search/problem/cost.hpp: enum Split
RECOMPUTE_CODES = (None, *RECOMPUTE)  # enum Recompute

# Each further slice of a split operator is three more matrix products in a step (forward, gradient of the
# input, gradient of the weight), and launching one takes about this long on CPUs and GPUs alike.
SLICE_OVERHEAD_S = 3 * 5e-6


@dataclass(frozen=True)
class Space:
    """What the search may choose from."""

    modes: tuple[str, ...]
    granularities: tuple[int, ...]
    recompute: tuple[str | None, ...]


def choose_space(
    modes: str | Sequence[str],
    granularity: str | int | Sequence[int],
    checkpoint: str | bool | Sequence[str],
    cost: str,
    hosts: int = 1,
) -> Space:
    """The arguments of `search` in full. Raises InvalidProblemError naming the argument."""
    chosen: tuple[str, ...]
    if modes == "auto":
        chosen = ("NO_SHARD", "FULL_SHARD")
        if cost == "osdp":
            chosen = MODES if hosts > 1 else tuple(m for m in MODES if m != "HYBRID_SHARD")
    else:
        chosen = (modes,) if isinstance(modes, str) else tuple(modes)
        for mode in chosen:
            if mode not in MODES:
                raise InvalidProblemError(f"modes: {mode!r} is none of {', '.join(MODES)}")
            if chosen.count(mode) > 1:
                raise InvalidProblemError(f"modes: {mode!r} is there twice")
        if not chosen:
            raise InvalidProblemError("modes is empty: at least one mode must be allowed")
        if "HYBRID_SHARD" in chosen and hosts == 1:
            raise InvalidProblemError("modes: HYBRID_SHARD needs several hosts: say hosts=")
    if granularity == "auto":
        slices: tuple[int, ...] = GRANULARITIES
    elif isinstance(granularity, str):
        raise InvalidProblemError(
            f"granularity is {granularity!r}; it is 'auto', a number or a tuple of numbers"
        )
    else:
        slices = (granularity,) if isinstance(granularity, int) else tuple(granularity)
        for g in slices:
            if isinstance(g, bool) or not isinstance(g, int) or not 1 <= g <= 4096:
                raise InvalidProblemError(f"granularity: {g!r} is not a number of slices from 1 to 4096")
    ways: dict[object, tuple[str | None, ...]] = {
        "auto": (None, "hold", "regather"),
        False: (None,),
        "none": (None,),
        True: ("hold", "regather"),
        "hold": ("hold",),
        "regather": ("regather",),
    }
    asked = checkpoint if isinstance(checkpoint, (str, bool)) else tuple(checkpoint)
    if not isinstance(asked, tuple) and asked not in ways:
        raise InvalidProblemError(
            f"checkpoint is {checkpoint!r}; it is 'auto', True, False, 'none', 'hold', 'regather' or some of these"
        )
    recompute = (
        ways[asked] if not isinstance(asked, tuple) else tuple(None if r == "none" else r for r in asked)
    )
    if not recompute or any(r not in RECOMPUTE_CODES for r in recompute):
        raise InvalidProblemError(f"checkpoint: {asked!r} is not some of 'none', 'hold', 'regather'")
    if len(set(recompute)) < len(recompute):
        raise InvalidProblemError(f"checkpoint: {asked!r} names a way twice")
    if cost == "paper":
        if asked != "auto" and recompute != (None,):
            raise InvalidProblemError(
                "cost='paper' knows no recomputation: use checkpoint=False or cost='osdp'"
            )
        recompute = (None,)
    return Space(chosen, tuple(sorted({g for g in slices if g > 1})), recompute)


def make_model(
    description: ModelDescription,
    hardware: Hardware,
    precision: str = "fp32",
    whole: Sequence[str] = (),
    beside_tensors: int = 0,
    cost_version: int = COST_VERSION,
) -> _search.Model:
    """The description with this machine's computing times. Raises InvalidProblemError naming the operator.

    `whole`: patterns of what is NO_SHARD for sure (`whole_operators`). `beside_tensors`: bytes that the device holds all the
    time (`beside_tensors`, in all).
    """
    block_index = {b.name: i for i, b in enumerate(description.blocks)}
    named = whole_operators(description, whole)
    dtypes = computing_dtypes(description, precision)
    operators = [
        _operator(o, block_index, hardware, precision, dtypes[o.name], o.name in named)
        for o in description.operators
    ]
    blocks = [(b.name, b.input_bytes_per_sample) for b in description.blocks]
    held = description.input_bytes_per_sample + description.output_bytes_per_sample
    buffers = sum(o.buffer_bytes for o in description.operators) if cost_version > 1 else 0
    return _search.Model(operators, blocks, held, buffers + beside_tensors)


def beside_tensors(
    description: ModelDescription,
    hardware: Hardware,
    ranks: int,
    hosts: int,
    optimizer: str,
    separate_reductions: bool,
) -> tuple[Term, ...]:
    """What a rank's device holds in every phase and no tensor has: `osdp.planning.device_memory`."""
    state = OPTIMIZER_STATE.get(optimizer, 0)
    return memory_terms(
        description,
        hardware,
        ranks=ranks,
        hosts=hosts,
        state=state,
        separate_reductions=separate_reductions,
    )


def make_request(
    hardware: Hardware,
    space: Space,
    *,
    world_size: int,
    limit_bytes: int,
    batches: Sequence[tuple[int, int]],
    optimizer: str,
    cost: str,
    method: str,
    least_transient_bytes: int = 0,
    hosts: int = 1,
    prefetch: int = 1,
    find_smallest: bool = True,
    exposed: float | None = None,
    cost_version: int = COST_VERSION,
) -> _search.Request:
    """What to search for. `batches`: (size per rank, micro-batches per step); empty: every size that fits. `exposed`: how
    much longer the objective takes a step to be for each second of communication; None: the hardware's.
    """
    if optimizer not in OPTIMIZER_STATE:
        raise InvalidProblemError(f"optimizer is {optimizer!r}; known are {', '.join(OPTIMIZER_STATE)}")
    # Where the links between hosts were not measured, all links are taken to be alike.
    between = hardware.between_hosts or Collective(0.0, 0.0)
    if hosts > 1 and hardware.between_hosts is None:
        between = hardware.all_reduce
    return _search.Request(
        cost=cost,
        modes=[MODES.index(m) for m in space.modes],
        granularities=list(space.granularities),
        optimizer_bytes_per_parameter_byte=OPTIMIZER_STATE[optimizer],
        bucket_bytes=BUCKET_BYTES,
        slice_overhead_s=SLICE_OVERHEAD_S if cost == "osdp" else 0.0,
        ranks=world_size,
        collectives=[
            (c.alpha_s, c.beta_s_per_byte)
            for c in (hardware.all_gather, hardware.reduce_scatter, hardware.all_reduce, between)
        ],
        exposed=hardware.exposed_communication if exposed is None else exposed,
        hosts=hosts,
        optimizer_s_per_byte=hardware.optimizer_s_per_byte,
        recompute_slowdown=hardware.recompute_slowdown,
        limit_bytes=limit_bytes,
        batches=list(batches),
        recompute=[RECOMPUTE_CODES.index(r) for r in space.recompute],
        least_transient_bytes=least_transient_bytes,
        buffers=_buffers(prefetch, hardware.device, cost_version),
        find_smallest=find_smallest,
        depth_first=method != "exact",
        smallest_first=method == "dfs-smallest-first",
        cost_version=cost_version,
    )


def _buffers(prefetch: int, device: str, cost_version: int) -> int:
    """Full tensors that room is reserved for: Note [Reserve] in csrc/search/problem/model.hpp."""
    if cost_version < 3:
        return 2 + prefetch
    return 1 + prefetch + (device != "cpu" and cost_version > 3)


def least_transient(
    description: ModelDescription, precision: str = "fp32", cost_version: int = COST_VERSION
) -> int:
    """Bytes of the largest unit that a plan has whatever it chooses, for which room is reserved: untraced operators
    that share their gathering modules.
    """
    together: dict[object, int] = {}
    if cost_version == 1:
        tied = [o for o in description.operators if o.parameters and o.traced and len(o.gather_at) > 1]
        together = {o.name: gathered_bytes(o, precision) for o in tied}
    for o in description.operators:
        if o.parameters and not o.traced:
            together[o.gather_at] = together.get(o.gather_at, 0) + gathered_bytes(o, precision)
    return max(together.values(), default=0)


def computing_dtypes(description: ModelDescription, precision: str) -> dict[str, str]:
    """Operator -> the dtype that its matrix products are in: the precision's, else its own parameters'; an operator
    without parameters has that of most of the model's. "tf32" where fp32 is multiplied so.
    """
    given = PRECISIONS[precision][0]
    if given is not None:
        return dict.fromkeys((o.name for o in description.operators), given)
    bytes_of: dict[str, int] = {}
    own: dict[str, str] = {}
    for o in description.operators:
        for p in o.parameters:
            bytes_of[p.dtype] = bytes_of.get(p.dtype, 0) + p.elements
        if o.parameters:
            own[o.name] = max(o.parameters, key=lambda p: p.elements).dtype
    most = max(bytes_of, key=bytes_of.__getitem__, default="float32")
    found = {o.name: own.get(o.name, most) for o in description.operators}
    return {name: "tf32" if (precision, d) == ("tf32", "float32") else d for name, d in found.items()}


def flops_rate(hardware: Hardware, dtype: str) -> float:
    """Operations per second of matrix products in `dtype`; those of fp32 where nothing else is known."""
    rate = hardware.flops_per_s_by_dtype.get(dtype, hardware.flops_per_s)
    if not rate > 0:
        raise InvalidProblemError(f"hardware {hardware.name!r}: flops_per_s is {rate}")
    return rate


def compute_s(operator: Operator, hardware: Hardware, dtype: str = "float32") -> tuple[float, float, float]:
    """Seconds: forward and backward per sample, their part that does not grow with the batch, forward per sample.

    Measured where the hardware has a figure for this operator; else from its flops at the rate of `dtype` (backward
    counts twice forward).
    """
    if operator.name in hardware.gamma_s:
        both = hardware.gamma_s[operator.name]
    else:
        both = 3 * operator.flops_per_sample / flops_rate(hardware, dtype)
    fixed = hardware.gamma_fixed_s.get(operator.name, 0.0)
    return both, fixed, hardware.recompute_s.get(operator.name, both / 3)


def itemsize(dtype: str) -> int:
    """Bytes of one element: "float32" 4, "bfloat16" 2, "float8_e4m3fn" 1, "bool" 1."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


def itemsizes(p: Parameter, precision: str) -> tuple[int, int]:
    """Bytes of one element of a parameter as it is gathered and computed with, and of its gradient as it is averaged."""
    compute, reduce = PRECISIONS[precision]
    if compute is None or reduce is None or "float" not in p.dtype:
        return itemsize(p.dtype), itemsize(p.dtype)
    return itemsize(compute), itemsize(reduce)


def gathered_bytes(o: Operator, precision: str) -> int:
    """What gathering the whole operator takes, for its parameters or their gradients on their way."""
    sizes = [(p.elements, *itemsizes(p, precision), p.trainable) for p in o.parameters]
    return max(sum(n * compute for n, compute, _, _ in sizes), sum(n * r for n, _, r, t in sizes if t))


def _tensor(p: Parameter, precision: str, whole: bool) -> _search.Tensor:
    rows = next((d for d in p.shape if d != 1), 1)
    per_row = p.elements // rows if rows else 0
    compute, reduce = itemsizes(p, precision)
    return _search.Tensor(
        rows=rows,
        row_bytes=per_row * itemsize(p.dtype),
        trainable=p.trainable,
        shardable=len(p.shape) > 0 and not whole,
        compute_row_bytes=per_row * compute,
        reduce_row_bytes=per_row * reduce,
    )


def _operator(
    o: Operator, block_index: dict[str, int], hardware: Hardware, precision: str, dtype: str, whole: bool
) -> _search.Operator:
    op = _search.Operator()
    op.name = o.name
    op.tensors = [_tensor(p, precision, whole) for p in o.parameters]
    if o.split_shape is not None:
        weights = [i for i, p in enumerate(o.parameters) if sorted(p.shape) == sorted(o.split_shape)]
        if weights and o.parameters[weights[0]].elements:
            op.split_tensor = weights[0]
            op.out_features, op.in_features = o.split_shape
    op.calls = max(1, o.calls)
    op.places = max(1, len(o.gather_at)) if o.traced else 1
    op.block = -1 if o.block is None else block_index[o.block]
    op.saved_bytes_per_sample = o.saved_bytes_per_sample
    op.saved_bytes_fixed = o.saved_bytes_fixed
    op.work_bytes_per_sample = o.work_bytes_per_sample
    op.work_bytes_fixed = o.work_bytes_fixed
    op.compute_s_per_sample, op.compute_s_fixed, op.recompute_s_per_sample = compute_s(o, hardware, dtype)
    return op


def signature(o: Operator) -> object:
    """What makes two operators alike, wherever they stand."""
    parameters = tuple((p.shape, p.dtype, p.trainable) for p in o.parameters)
    return (
        o.kind,
        parameters,
        o.calls,
        len(o.gather_at),
        o.split_shape,
        o.saved_bytes_per_sample,
        o.saved_bytes_fixed,
        o.work_bytes_per_sample,
        o.work_bytes_fixed,
        o.flops_per_sample,
    )
