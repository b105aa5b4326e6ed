"""Converts model, hardware and search options to the inputs of csrc/search."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from osdp import _search
from osdp.base.names import modules_around
from osdp.description.model_description import SAVED_BYTES, WORK_BYTES, ModelDescription, Operator, Parameter
from osdp.errors import InvalidProblemError
from osdp.hardware.hardware import Collective, Hardware, Protocol
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import OperatorCollectives, Stage
from osdp.plan.whole_operators import whole_operators
from osdp.planning.device_memory import Term, memory_terms
from osdp.planning.kernel_times import operator_s, slices_s
from osdp.planning.optimizer_states import OPTIMIZERS, OptimizerState

# Each additional slice of a split operator adds three matrix products to a step (forward, gradient of the
# input, gradient of the weight); launching one takes about 5 us on both CPUs and GPUs.
SLICE_OVERHEAD_S = 3 * 5e-6


def make_model(
    description: ModelDescription,
    hardware: Hardware,
    precision: str,
    whole: Sequence[str] = (),
    beside_tensors: int = 0,
    batch_size: int | None = None,
    collectives: Mapping[str, OperatorCollectives] | None = None,
) -> _search.Model:
    """The description with the machine's computation times, those of kernels exact at `batch_size` (Note [Times of
    kernels]). Raises InvalidProblemError naming the operator.

    `whole`: patterns of modules and parameters that are always NO_SHARD (`whole_operators`).
    `beside_tensors`: total bytes that the device holds besides tensors (see `beside_tensors`).
    `collectives`: of operators whose ranks compute them together; computation waits for these.
    """
    block_index = {b.name: i for i, b in enumerate(description.blocks)}
    named = whole_operators(description, whole)
    flops = {o.name: o.flops_per_sample for o in description.operators}
    all_times = OperatorTimes(description, hardware, precision).at(batch_size)
    operators = []
    for o, (times, in_slices) in zip(description.operators, all_times, strict=True):
        tied = sum(flops.get(place, 0) for place in o.gather_at if place != o.name)
        op = _operator(o, block_index, precision, o.name in named, tied)
        _set_times(op, times, in_slices)
        if collectives and (waits := collectives.get(o.name)) is not None:
            op.compute_s_fixed += waits.forward_s + waits.backward_s
            op.recompute_s_fixed += waits.forward_s
        operators.append(op)
    return _search.Model(operators, *around_operators(description, beside_tensors))


class OperatorTimes:
    """The times of a model's operators at any batch; operators that are alike have them in common."""

    def __init__(self, description: ModelDescription, hardware: Hardware, precision: str) -> None:
        self._description, self._hardware = description, hardware
        dtypes = computing_dtypes(description, precision)
        timed = {*hardware.gamma_s, *hardware.gamma_fixed_s, *hardware.recompute_s}
        kinds: dict[object, int] = {}
        self._first: list[tuple[Operator, str]] = []  # operator and dtype of each kind
        self._kinds = []  # of each operator
        for o in description.operators:
            key = (o.name if o.name in timed and o.calls else signature(o), dtypes[o.name])
            if key not in kinds:
                kinds[key] = len(kinds)
                self._first.append((o, dtypes[o.name]))
            self._kinds.append(kinds[key])

    def at(self, batch: int | None) -> list[tuple[ComputeTime, list[tuple[int, float]]]]:
        """By operator: its times, and what slices take longer. None: at the sample's batch."""
        found = [self._of(o, dtype, batch) for o, dtype in self._first]
        return [found[kind] for kind in self._kinds]

    def model_at(self, batch: int) -> _search.Model:
        """A model of which the times alone are set."""
        made = []
        for o, dtype in self._first:
            made.append(_search.Operator())
            _set_times(made[-1], *self._of(o, dtype, batch))
        return _search.Model([made[kind] for kind in self._kinds], [], 0, 0)

    def _of(self, o: Operator, dtype: str, batch: int | None) -> tuple[ComputeTime, list[tuple[int, float]]]:
        times = compute_s(o, self._hardware, dtype, self._description, batch)
        if o.split_shape is None or o.name in self._hardware.gamma_s:
            return times, []
        size, rate = batch or max(1, self._description.sample_batch), flops_rate(self._hardware, dtype)
        return times, slices_s(o, self._description, self._hardware, rate, size, itemsize(dtype))


def _set_times(op: _search.Operator, times: ComputeTime, in_slices: list[tuple[int, float]]) -> None:
    op.compute_s_per_sample, op.compute_s_fixed = times.per_sample, times.fixed
    op.recompute_s_per_sample, op.recompute_s_fixed = times.forward_per_sample, times.forward_fixed
    op.slices_s = in_slices


def around_operators(
    description: ModelDescription, beside_tensors: int
) -> tuple[list[tuple[str, int]], int, int]:
    """Of a core model: blocks, bytes held of each sample, and bytes held always."""
    blocks = [(b.name, b.input_bytes_per_sample) for b in description.blocks]
    held = description.input_bytes_per_sample + description.output_bytes_per_sample
    return blocks, held, description.buffer_bytes + beside_tensors


def beside_tensors(
    description: ModelDescription,
    hardware: Hardware,
    ranks: int,
    hosts: int,
    optimizer: str,
    separate_reductions: bool,
    stage: Stage | None = None,
) -> tuple[Term, ...]:
    """Memory that a rank's device holds besides tensors in every phase: `osdp.planning.device_memory`."""
    return memory_terms(
        description,
        hardware,
        ranks=ranks,
        hosts=hosts,
        state=OPTIMIZERS.get(optimizer, OptimizerState()).kept_tensors,
        separate_reductions=separate_reductions,
        other_groups=0 if stage is None else (stage.tensor_parallel > 1) + (stage.stages > 1),
    )


def make_device(hardware: Hardware, ranks: int, hosts: int = 1, paper: bool = False) -> _search.Device:
    """The machine of `ranks` ranks, spread over `hosts`."""
    # If links between hosts were not measured, all links are assumed to be alike.
    alike = hardware.all_reduce if hosts > 1 else Collective(0.0, 0.0)
    between = hardware.between_hosts or alike
    hardware = hardware.inside_a_host(hosts)
    host = hardware.host_memory
    return _search.Device(
        ranks=ranks,
        hosts=hosts,
        all_gather=core_collective(hardware.all_gather),
        reduce_scatter=core_collective(hardware.reduce_scatter),
        all_reduce=core_collective(hardware.all_reduce),
        between_hosts=core_collective(between),
        exposed=hardware.exposed_communication,
        optimizer_s_per_byte=hardware.optimizer_s_per_byte,
        recompute_slowdown=hardware.recompute_slowdown,
        protocols=[] if paper else [_protocol(p) for p in hardware.protocols],
        host_copy=core_collective(host.copy if host is not None else Collective(0.0, 0.0)),
        host_optimizer_s_per_byte=host.optimizer_s_per_byte if host is not None else 0.0,
    )


def _protocol(p: Protocol) -> _search.Protocol:
    return _search.Protocol(
        p.algorithm, p.base_s, p.inner_hop_s, p.outer_hop_s, p.bandwidth_share, p.most_bytes_per_s
    )


def core_collective(c: Collective) -> _search.Collective:
    return _search.Collective(c.alpha_s, c.beta_s_per_byte)


def computing_dtypes(description: ModelDescription, precision: str) -> dict[str, str]:
    """Operator -> dtype of its matrix products: the precision's, else that of its parameters; for an operator
    without parameters the model's most frequent one. "tf32" where fp32 products use it.
    """
    given = PRECISIONS[precision][0]
    if given is not None:
        return dict.fromkeys((o.name for o in description.operators), given)
    bytes_of: dict[str, int] = {}
    own: dict[str, str] = {}
    for o in description.operators:
        for p in o.parameters:
            bytes_of[p.dtype] = bytes_of.get(p.dtype, 0) + p.elements
        if o.parameters and o.calls:
            own[o.name] = max(o.parameters, key=lambda p: p.elements).dtype
    most = max(bytes_of, key=bytes_of.__getitem__, default="float32")
    found = {o.name: own.get(o.name, most) for o in description.operators}
    return {name: "tf32" if (precision, d) == ("tf32", "float32") else d for name, d in found.items()}


def flops_rate(hardware: Hardware, dtype: str) -> float:
    """Operations per second of matrix products in `dtype`; those of fp32 if its rate is unknown."""
    rate = hardware.flops_per_s_by_dtype.get(dtype, hardware.flops_per_s)
    if not rate > 0:
        raise InvalidProblemError(f"hardware {hardware.name!r}: flops_per_s is {rate}")
    return rate


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of one operator in a micro-batch of b samples: `fixed + b * per_sample`, of forward and backward; those
    `forward_...` of forward alone, which a recomputation repeats."""

    per_sample: float
    fixed: float
    forward_per_sample: float
    forward_fixed: float = 0.0

    def step(self, batch: int) -> float:
        return self.fixed + batch * self.per_sample

    def forward(self, batch: int) -> float:
        return self.forward_fixed + batch * self.forward_per_sample


# Note [Times of kernels]
# The search, its checker and the simulator take an operator's time as a line in the batch, of forward and of both. Each
# kernel's time is the largest of lines (its bytes at the memory's rate; its flops at the rate of each of its dimensions), so
# the line through a batch and the next one is exact there, and nowhere above the kernels' times: what is proven with it
# holds for all batches. Where the search chooses the batch, it asks for the lines at those that it comes to: a plan is
# simulated with the lines at its own batch (Note [Lines of time] in csrc/search/problem/timed_model.hpp). What slices take
# longer is that batch's.
def compute_s(
    operator: Operator,
    hardware: Hardware,
    dtype: str = "float32",
    description: ModelDescription | None = None,
    batch_size: int | None = None,
) -> ComputeTime:
    """The operator's times, those of kernels exact at `batch_size` (by default the sample's).

    Measured where the hardware has a figure for this operator; else those of its kernels, where hardware and
    description have what that takes; else from its flops at the rate of `dtype` (backward counts twice forward). A profile
    has no rates of kernels: an operator that it did not measure, as of another model, is priced by its flops.
    """
    if operator.parameters and not operator.calls:  # another stage computes what its module does
        return ComputeTime(0.0, 0.0, 0.0)
    if operator.name not in hardware.gamma_s and description is not None:
        batch, rate = batch_size or max(1, description.sample_batch), flops_rate(hardware, dtype)
        here = operator_s(operator, description, hardware, rate, batch)
        more = operator_s(operator, description, hardware, rate, batch + 1)
        if here is not None and more is not None:
            slopes = [max(0.0, min(y - x, x / batch)) for x, y in zip(here, more, strict=True)]
            once = [max(0.0, x - slope * batch) for x, slope in zip(here, slopes, strict=True)]
            return ComputeTime(sum(slopes), sum(once), slopes[0], once[0])
    if operator.name in hardware.gamma_s:
        both = hardware.gamma_s[operator.name]
    else:
        both = 3 * operator.flops_per_sample / flops_rate(hardware, dtype)
    fixed = hardware.gamma_fixed_s.get(operator.name, 0.0)
    return ComputeTime(both, fixed, hardware.recompute_s.get(operator.name, both / 3))


@cache
def itemsize(dtype: str) -> int:
    """Bytes of one element: "float32" and "tf32" 4, "bfloat16" 2, "float8_e4m3fn" 1, "bool" 1."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


def itemsizes(p: Parameter, precision: str) -> tuple[int, int]:
    """Bytes per element of a parameter when gathered, and of its gradient when averaged."""
    compute, reduce = PRECISIONS[precision]
    if compute is None or reduce is None or "float" not in p.dtype:
        return itemsize(p.dtype), itemsize(p.dtype)
    return itemsize(compute), itemsize(reduce)


def gathered_bytes(o: Operator, precision: str) -> int:
    """Bytes of the whole operator when gathered: of its parameters or of their gradients being reduced,
    whichever is more."""
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
        item_bytes=itemsize(p.dtype),
    )


def _operator(
    o: Operator,
    block_index: dict[str, int],
    precision: str,
    whole: bool,
    tied_flops: int,
) -> _search.Operator:
    """`tied_flops`: for each sample, of other operators' modules that multiply with its weight."""
    op = _search.Operator()
    op.name = o.name
    op.tensors = [_tensor(p, precision, whole) for p in o.parameters]
    if o.split_shape is not None:
        weights = [i for i, p in enumerate(o.parameters) if o.slices(p)]
        if weights and o.parameters[weights[0]].elements:
            op.split_tensor = weights[0]
            op.out_features, op.in_features = o.split_shape
            products = max(1, o.calls - o.calls * len(o.look_ups) // max(1, len(o.gather_at)))
            a_row = 2 * math.prod(o.split_shape) * products  # flops over all calls
            op.rows_per_sample = -(-(o.flops_per_sample + tied_flops) // a_row)
            op.look_ups = len(o.look_ups)
            op.transposed, op.convolution = o.transposed, o.kernel_places > 0
    op.calls = max(1, o.calls)
    op.places = max(1, len(o.gather_at)) if o.traced else 1
    op.block = -1 if o.block is None else block_index[o.block]
    for name in (*SAVED_BYTES, *WORK_BYTES, "waiting_gradient_bytes"):
        setattr(op, name, getattr(o, name))
    return op


def gathering_calls(description: ModelDescription) -> dict[str, tuple[list[tuple[int, int]], int]]:
    """By operator: the first and last operator of each call that gathers it, and the number of calls of each
    of these modules in one forward.
    """
    spans = _spans(description)
    return {
        o.name: (
            [spans.get(place, (i, i)) for place in o.gather_at] or [(i, i)],
            max(1, o.calls // max(1, len(o.gather_at))),
        )
        for i, o in enumerate(description.operators)
    }


def _spans(description: ModelDescription) -> dict[str, tuple[int, int]]:
    """By module: the first and last operator, in execution order, of its call."""
    spans: dict[str, tuple[int, int]] = {}
    for i, o in enumerate(description.operators):
        for name in modules_around(o.name):
            first, _ = spans.get(name, (i, i))
            spans[name] = (first, i)
    return spans


def signature(o: Operator) -> object:
    """Equal for operators that are alike apart from their position."""
    parameters = tuple((p.shape, p.dtype, p.trainable) for p in o.parameters)
    return (
        o.kind,
        parameters,
        o.calls,
        len(o.gather_at),
        o.split_shape,
        o.transposed,
        o.kernel_places,
        *(getattr(o, name) for name in (*SAVED_BYTES, *WORK_BYTES)),
        o.waiting_gradient_bytes,
        o.flops_per_sample,
        o.forward_kernels,
        o.backward_kernels,
    )
