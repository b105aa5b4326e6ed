"""search: the best plan for a model under a memory limit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from osdp import _search
from osdp.base.byte_sizes import parse_bytes
from osdp.base.warned import warn
from osdp.description.model_description import ModelDescription
from osdp.errors import DescribeError, InvalidProblemError
from osdp.hardware.hardware import Hardware
from osdp.plan.parallel_plan import ParallelPlan
from osdp.plan.plan import Plan
from osdp.plan.precisions import PRECISIONS
from osdp.plan.searched import COST_VERSION, COSTS, METHODS, OBJECTIVES, Searched
from osdp.plan.unit_grouping import small_unit_bytes
from osdp.plan.whole_operators import patterns_of, whole_operators
from osdp.planning.arguments import (
    THIS_MACHINE,
    arguments_of,
    batches_of,
    check_batch_matters,
    check_device,
    check_kernels,
    check_measured_ranks,
    check_precision,
    check_sample,
    check_time_limit,
    default_batch,
    description_of,
    integer,
    machine_of,
    one_of,
    ranks_of,
    this_machine,
)
from osdp.planning.degrees.arguments import degrees_asked, searched_degrees
from osdp.planning.objectives import best_plan
from osdp.planning.search_problem import SearchProblem
from osdp.planning.search_space import check_host_memory, choose_space, prefetch_asked

if TYPE_CHECKING:
    from torch import nn

    from osdp.planning.arguments import Sample


@overload
def search(
    model_or_desc: nn.Module | ModelDescription,
    sample: Sample = None,
    memory: int | float | str | None = None,
    world_size: int | None = None,
    hardware: Hardware | str | os.PathLike[str] | None = None,
    batch_size: int | str | None = None,
    global_batch_size: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    granularity: str | int | Sequence[int] = "auto",
    checkpoint: str | bool | Sequence[str] = "auto",
    modes: str | Sequence[str] = "auto",
    cost: str = "osdp",
    method: str = "exact",
    time_limit: float | None = None,
    *,
    hosts: int = 1,
    prefetch: int | str = "auto",
    separate_reductions: bool = False,
    objective: str = "throughput",
    at_least: float | None = None,
    whole: str | Sequence[str] = (),
    gap: float = 0.005,
    tensor_parallel: None = None,
    pipeline_parallel: None = None,
    tp_plan: None = None,
    schedule: str = "auto",
) -> Plan: ...


@overload
def search(
    model_or_desc: nn.Module | ModelDescription,
    sample: Sample = None,
    memory: int | float | str | None = None,
    world_size: int | None = None,
    hardware: Hardware | str | os.PathLike[str] | None = None,
    batch_size: int | str | None = None,
    global_batch_size: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    granularity: str | int | Sequence[int] = "auto",
    checkpoint: str | bool | Sequence[str] = "auto",
    modes: str | Sequence[str] = "auto",
    cost: str = "osdp",
    method: str = "exact",
    time_limit: float | None = None,
    *,
    hosts: int = 1,
    prefetch: int | str = "auto",
    separate_reductions: bool = False,
    objective: str = "throughput",
    at_least: float | None = None,
    whole: str | Sequence[str] = (),
    gap: float = 0.005,
    tensor_parallel: int | str | None = None,
    pipeline_parallel: int | str | None = None,
    tp_plan: Mapping[str, Any] | None = None,
    schedule: str = "auto",
) -> Plan | ParallelPlan: ...


def search(
    model_or_desc: nn.Module | ModelDescription,
    sample: Sample = None,
    memory: int | float | str | None = None,
    world_size: int | None = None,
    hardware: Hardware | str | os.PathLike[str] | None = None,
    batch_size: int | str | None = None,
    global_batch_size: int | None = None,
    optimizer: str = "adamw",
    precision: str = "fp32",
    granularity: str | int | Sequence[int] = "auto",
    checkpoint: str | bool | Sequence[str] = "auto",
    modes: str | Sequence[str] = "auto",
    cost: str = "osdp",
    method: str = "exact",
    time_limit: float | None = None,
    *,
    hosts: int = 1,
    prefetch: int | str = "auto",
    separate_reductions: bool = False,
    objective: str = "throughput",
    at_least: float | None = None,
    whole: str | Sequence[str] = (),
    gap: float = 0.005,
    tensor_parallel: int | str | None = None,
    pipeline_parallel: int | str | None = None,
    tp_plan: Mapping[str, Any] | None = None,
    schedule: str = "auto",
) -> Plan | ParallelPlan:
    """Find the plan with the best throughput whose predicted peak memory per rank is at most `memory`.

    Steps are simulated event by event (`Plan.simulate`). No plan in the search space has a step that is faster than a
    bound, which is proven first; the plans that attain it are simulated and improved by local search, and the fastest is
    returned as soon as its step is within `gap` of the bound. `plan.certificate.gap` says how close it is
    (docs/algorithm.md).

    model_or_desc: a model, which is described first with `sample`, or the result of `osdp.describe`.
    sample: example inputs of the model's forward: its only argument (a tensor), a tuple of arguments, or a dict of
        keyword arguments. A description has its own.
    memory: limit per rank, in bytes or as a string ("8GiB"); by default the hardware's.
    world_size: number of ranks; by default the process group's, else the hardware's.
    hardware: a Hardware (measured by `osdp.profile`), its name or its file. "this": measured now, in about five seconds
        (`osdp.profile`, so every rank must call). None: DEFAULT_HARDWARE without its memory outside of tensors, since a
        search measures nothing by itself: all ranks must find the same plan, and it may be for another machine.
    batch_size: per rank. "auto" tries every size that fits and takes the best time per sample. By default the sample's,
        where a model and its sample are given, and "auto" for a description or with `global_batch_size`.
    global_batch_size: samples of one step over all ranks. The batch size per rank must divide global / world_size, and
        gradients are accumulated over the remaining factor.
    optimizer: determines the bytes of optimizer state per parameter: "adamw", "adam", "sgd", "sgd-momentum", "lion",
        "rmsprop" or "adagrad"; with moments in bfloat16 "adamw-bf16", "sgd-momentum-bf16" or "lion-bf16", quantised
        "adamw-8bit", "sgd-momentum-8bit" or "lion-8bit" (docs/search.md has the bytes of each).
    precision: "fp32", or "tf32" (fp32 products in TF32): everything has the model's dtypes. "bf16", "fp16",
        "bf16-reduce-fp32", "fp16-reduce-fp32": parameters are gathered and computed with, and gradients averaged, in
        these dtypes; the dtypes of parameters and optimizer state do not change (docs/precision.md).
    granularity: numbers of slices to try for split operators, besides 1.
    checkpoint: which recomputation to try. "auto": "none", "hold" and "regather", for each block separately.
    modes: which modes to try, of NO_SHARD, SHARD_GRAD_OP, FULL_SHARD and, with more than one host, HYBRID_SHARD and
        FULL_SHARD_HPZ; "auto": these. Of FULL_SHARD_HIERARCHICAL (docs/runtime.md#full_shard-in-two-levels) and of
        FULL_SHARD_OFFLOAD and HYBRID_SHARD_OFFLOAD, too, where `hardware` has `host_memory`
        (docs/search.md#operators-in-host-memory).
    cost: "osdp", or "paper" for the paper's cost model.
    method: "exact", or with cost="paper" the paper's search: "dfs", which may take very long to find any plan where
        most do not fit, or "dfs-smallest-first", the same with each operator's smallest options tried first.
    time_limit: seconds for the whole call. None: the search counts its steps and ends after about 5 to 10 s, so that
        ranks that search independently find the same plan; objectives other than "throughput" end after 10 s, the
        paper's search never does.
    hosts: number of hosts, over which the ranks are spread evenly.
    prefetch: number of units gathered ahead of the one in use, or what smaller ones have room for in the memory of that
        many of the largest. "auto": 1, or up to 8 where that is faster and fits.
    separate_reductions: on accelerators, reduce gradients while parameters are gathered, on a separate communicator
        whose buffers the plan counts. Worth it where latency between hosts dominates collectives
        (docs/accelerators.md).
    objective: "throughput". "memory": the smallest memory, at most `memory`, whose best plan gives `at_least`
        samples/s. "batch": the largest batch that fits, and the fastest plan for it.
    at_least: samples/s over all ranks, for objective="memory".
    whole: patterns ("head", "*.norm?", "blocks.*.weight") of modules or parameters that every rank holds in full
        (NO_SHARD), for optimizers that need whole matrices. `*` matches dots too, a module's name stands for all its
        parameters, and a pattern that matches one parameter of an operator applies to the whole operator.
    gap: the search ends when its plan's simulated step is within this fraction of the bound. 0: it tries as long as it can.
    tensor_parallel, pipeline_parallel: how many ranks share each operator, and how many stages there are; "auto": the
        best of all that are possible. With either, the result is a ParallelPlan: degrees, stages, and a plan for each
        over the ranks that are left (docs/degrees.md). It needs `global_batch_size`; `batch_size` is a micro-batch's.
    tp_plan: which operators the ranks of a tensor-parallel group share, as torch's `parallelize_module` takes it: styles
        by pattern of module names, or strings ("colwise", "rowwise"). By default that of a model of `transformers`.
    schedule: of stages, "1f1b" or "gpipe"; "auto": the faster of both.

    After `time_limit`, or Ctrl-C, the best plan so far is returned; `plan.certificate.gap` says how much faster another plan
    might be.

    Raises InfeasibleError with the smallest limit that works and its plan, and InvalidProblemError for arguments that
    make no sense.

    >>> plan = osdp.search(model, (tokens,), memory="8GiB", world_size=8, hardware="rtx-titan-8")
    """
    one_of("cost", cost, COSTS)
    one_of("method", method, METHODS)
    one_of("precision", precision, tuple(PRECISIONS))
    one_of("objective", objective, OBJECTIVES)
    if method != "exact" and cost != "paper":
        raise InvalidProblemError(f"method={method!r} is the paper's search and supports only cost='paper'")
    if (at_least is not None) != (objective == "memory"):
        raise InvalidProblemError("objective='memory' and at_least (samples/s) must be given together")
    if at_least is not None and not 0 < at_least < 1e15:
        raise InvalidProblemError(f"at_least must be a positive number of samples/s, got {at_least}")
    check_time_limit(time_limit)
    degrees = degrees_asked(tensor_parallel, pipeline_parallel, tp_plan, schedule)
    if isinstance(gap, bool) or not 0 <= gap < 1:
        raise InvalidProblemError(f"gap must be at least 0 and less than 1, got {gap}")
    check_sample(model_or_desc, sample)
    machine = this_machine(model_or_desc, sample) if hardware == THIS_MACHINE else machine_of(hardware)
    device = None if hardware is None else machine.device  # no machine: where the model is
    description = description_of(model_or_desc, sample, device)
    if batch_size is None:
        batch_size = default_batch(model_or_desc, description, global_batch_size)
    check_batch_matters(description, batch_size)
    if precision != "fp32" and not isinstance(model_or_desc, ModelDescription):
        description = _in_precision(description, model_or_desc, sample, precision, device)
    else:
        check_precision(description, precision)
    check_kernels(description, machine)
    if hardware is not None and isinstance(model_or_desc, ModelDescription):
        check_device(description, machine)
    whole_operators(description, patterns_of(whole))  # raises for names that the model does not have
    ranks = ranks_of(world_size, machine)
    check_measured_ranks(machine, ranks)
    if memory is None and machine.memory_bytes is None:
        raise InvalidProblemError(f"memory is not given, and hardware {machine.name!r} does not state it")
    limit = parse_bytes(memory if memory is not None else machine.memory_bytes or 0)
    if not 1 <= integer(hosts, "hosts") <= ranks or ranks % hosts:
        raise InvalidProblemError(f"hosts is {hosts}; it must divide the world size {ranks}")
    ahead = prefetch_asked(prefetch)
    if not isinstance(separate_reductions, bool):
        raise InvalidProblemError(f"separate_reductions must be True or False, got {separate_reductions!r}")
    space = choose_space(modes, granularity, checkpoint, cost, hosts)
    check_host_memory(machine, space.modes)
    searched = Searched(
        modes=space.modes,
        granularity=space.granularities,
        small_unit_bytes=small_unit_bytes(machine, ranks, hosts),
        checkpoint=space.checkpoint,
        batch_size=None if isinstance(batch_size, str) else integer(batch_size, "batch_size"),
        global_batch_size=global_batch_size,
        hosts=hosts,
        prefetch=ahead,
        objective=objective,
        at_least=at_least,
        method=method,
        time_limit_s=time_limit,
        whole=patterns_of(whole),
        gap=gap,
    )
    problem = SearchProblem(
        description, machine, ranks, optimizer, precision, cost, separate_reductions, searched
    )
    try:
        if degrees:
            return searched_degrees(
                model_or_desc,
                problem,
                limit,
                tensor=tensor_parallel,
                pipeline=pipeline_parallel,
                tp_plan=tp_plan,
                schedule=schedule,
            )
        batches_of(batch_size, global_batch_size, ranks)  # raises for impossible sizes
        return best_plan(problem, limit)
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None


def _in_precision(
    description: ModelDescription,
    model: nn.Module,
    sample: Sample,
    precision: str,
    device: str | None,
) -> ModelDescription:
    """The description with that precision's activations; where it cannot be made, with the model's own, and a warning."""
    from osdp.planning.low_precision import with_low_activations

    try:
        return with_low_activations(description, model, *arguments_of(sample), precision, device)
    except DescribeError as error:
        warn(f"{error}. The search counts these, which may be twice as large")
        return description


def search_again(
    plan: Plan,
    memory: int | float | str,
    *,
    hardware: Hardware | None = None,
    **changes: Any,
) -> Plan:
    """The same search under another memory limit, with another machine or `changes` of `plan.searched` where given.

    Raises PlanMismatchError for a plan that was not searched.
    """
    problem = SearchProblem.of(plan).changed(
        **{"cost_version": COST_VERSION, "kernels_batch": None, **changes}
    )
    if hardware is not None:
        problem = dataclasses.replace(problem, hardware=hardware)
    try:
        return best_plan(problem, parse_bytes(memory))
    except _search.InvalidProblem as e:
        raise InvalidProblemError(str(e)) from None
