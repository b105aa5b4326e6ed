"""fully_shard: applies a plan to a model. Training steps then run in C++ (csrc/runtime)."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from osdp import _C
from osdp.hardware.this_machine import warn_of_another_machine
from osdp.plan.mixed_precision import MixedPrecision, parameter_dtypes
from osdp.plan.plan import Plan
from osdp.ranks.process_groups import LaneGroup, lane_group
from osdp.ranks.rank_group import Together
from osdp.sharding.consistency_check import agree
from osdp.sharding.copies import CopiedRows, copyable
from osdp.sharding.cpu_offload import offloaded_names, offloads, wants_offload
from osdp.sharding.dtensor_parameters import show_again, show_dtensors, shows_dtensors
from osdp.sharding.hybrid_mesh import GroupLike, agreed_grid, model_ranks, ways_to_tell_hosts_apart
from osdp.sharding.materialize import Placing, keep_ties, survey
from osdp.sharding.meta_init import InitFunction
from osdp.sharding.mixed_precision import chosen_precision
from osdp.sharding.module_tree import Tree
from osdp.sharding.parameter_meshes import make_meshes
from osdp.sharding.plan_on_modules import put_on_modules
from osdp.sharding.refusals import (
    check_plan,
    check_plan_and_model,
    check_ranks,
    need_backend_memory,
    need_process_group,
    usable_group,
)
from osdp.sharding.resharding import Resharding
from osdp.sharding.rollback import AsItWas
from osdp.sharding.sharded_model import Manner, Sharded, register, splits_of, unregister
from osdp.sharding.shared_memory import note_former
from osdp.sharding.tensor_parallel import check_layouts, local_parts, wrap_parameters
from osdp.sharding.torch_patches.install import install_torch_tools, keep_torch_tools, leave_torch


def fully_shard(
    model: nn.Module,
    plan: Plan,
    process_group: GroupLike | None = None,
    *,
    device_mesh: DeviceMesh | None = None,
    ranks_per_host: int | None = None,
    device_id: int | str | torch.device | None = None,
    param_init_fn: InitFunction | None = None,
    initialise: bool | None = True,
    cpu_offload: object = False,
    mixed_precision: MixedPrecision | object | None = None,
    allocate_memory_from_process_group_for_comm: bool = False,
    resharding: Resharding | None = None,
) -> nn.Module:
    """Shard `model` in place as `plan` says, and return it. Collective over `process_group` (default: all ranks).

    Class, names and parameter objects do not change. Outside of forward and backward a sharded parameter is
    this rank's rows, so create optimizers afterwards, as usual. All ranks get rank 0's parameters and
    buffers. Blocks in `plan.recompute` are recomputed in backward. `state_dict()` and `load_state_dict()`
    still use full tensors (collective).

    HYBRID_SHARD parameters are sharded inside a line of ranks, and each line holds a copy. `device_mesh`
    (2-D, replicate x shard) or `process_group=(shard group, replicate group)` determines the lines; otherwise
    a line is the ranks of one host: `ranks_per_host` consecutive ranks, or those with the same host name (see
    hybrid_mesh.py). The other modes shard over all ranks of the mesh or groups. A 1-D mesh is equivalent to
    its process group.

    A model built under `torch.device("meta")` is initialised here, a few modules at a time, by their `reset_parameters` or
    by `param_init_fn(module)`, which is called, as in FSDP1, for each module that directly owns parameters or
    buffers; no rank ever holds the full model (see meta_init.py). With `initialise=False` its values are NaN,
    to be loaded by `osdp.load` or `load_state_dict`; with None (as without a plan) that holds for what has no method to
    fill it, which is an error otherwise. If only rank 0 has values and the others are on the meta
    device, they receive their rows from it. Shards of operators that the plan offloads, their gradients and therefore the
    optimizer's state are kept in host memory; with `cpu_offload` (True, or FSDP1's and FSDP2's objects) those of all
    operators. Parameters that are not sharded stay on the device, and weights of which some slices are not (see
    osdp/sharding/cpu_offload.py).
    `device_id`: the device to train on, by default the model's (for the meta device: the current accelerator, if the process
    group communicates on it).

    Parameters that torch's `parallelize_module` has divided over `mesh["tp"]` before are sharded over `mesh["dp"]`, the
    `device_mesh` here: this rank's part of them is. Modules find DTensors in forward and backward, and state dicts have
    them over both meshes (docs/dtensor.md).

    `mixed_precision`: an osdp.MixedPrecision, or an object that osdp.plan.mixed_precision.as_mixed_precision
    accepts; None: `plan.precision`. Shards and state dicts keep the model's dtypes.

    `allocate_memory_from_process_group_for_comm`, like FSDP2's setter of that name: parameters are gathered,
    and gradients reduced, in memory that the process group's backend allocates (NCCL registers it with its
    communicator, so that a switch with SHARP can read and sum it). Means are then computed as sums that are
    divided afterwards, and gradients are first copied to this memory. See docs/accelerators.md.
    Raises ProcessGroupError if the backend has no such memory.

    `resharding`: the Resharding of parts of `model` that are sharded already, entered by the caller.

    Raises, on all ranks and with nothing changed: ProcessGroupError without a usable group, PlanMismatchError when the
    plan is for another model, world size or number of hosts, DisagreementError when ranks differ in plan,
    model or versions, ShardingError when the model is sharded already, or a module on the meta device cannot
    be initialised.

    >>> model = osdp.fully_shard(model, osdp.search(model, (tokens,), memory="8GiB", world_size=2))
    >>> optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    """
    need_process_group()
    given, grid = model_ranks(process_group, device_mesh)
    group = usable_group(given)
    check_ranks(plan, group)
    with local_parts(model):
        together = Together(group, "osdp.fully_shard")
        keep_ties(model)
        error: Exception | None = None
        everything = False  # is offloaded
        policy: MixedPrecision | None = None
        try:
            check_plan(plan)
            everything = wants_offload(cpu_offload)
            moves = everything or offloads(plan) or device_id is not None
            check_layouts(model, group)
            without_memory = resharding.without_memory if resharding is not None else ()
            wrapped = resharding is not None
            check_plan_and_model(model, plan, together.world_size, moves, without_memory, wrapped)
            if resharding is not None:
                resharding.check_group(group)
            policy = chosen_precision(mixed_precision, plan, model)
        except Exception as caught:
            error = caught
        backend_memory = allocate_memory_from_process_group_for_comm
        number = agree(together, model, plan, error, policy, backend_memory)
        grid = agreed_grid(together, plan, grid, ranks_per_host)
        place = survey(together, model, group, device_id, everything or offloads(plan), initialise)
        over = device_mesh if process_group is None else process_group
        mesh = over if isinstance(over, DeviceMesh) else None
        how = Manner(plan, together, number, grid, place.device, policy, everything, backend_memory, mesh)
        warn_of_another_machine(plan.hardware, place.device, together.world_size * _replica(plan))
        was = AsItWas(model)
        try:
            placing: Placing | None = None
            if place.elsewhere or _offloaded(model, how) or (resharding is not None and resharding.parts):
                placing = Placing(model, together, place.device, param_init_fn, initialise, resharding)
            if resharding is not None:
                resharding.begin(plan, grid)
            sharded = _cut_and_install(model, how, placing, was)
            if shows_dtensors(sharded.tree.known):  # of parts that were sharded before
                show_dtensors(sharded)
        except BaseException as caught:
            unregister(model)
            leave_torch()
            was.put_back()
            traceback.clear_frames(caught.__traceback__)  # they hold the runtime, and it the gradient hooks
            raise
        note_former(was.former_data(dict(model.named_parameters())))
        was.let_go()  # nothing fails from here on
        del was, placing  # the full values
        _measure_rest(sharded)
        return model


def regroup(resharding: Resharding, plan: Plan) -> None:
    """Make the model of `resharding`, whose rows stay under `plan` (`Resharding.keeps_rows`), travel in the plan's units and
    compute as it says. Its parameters, their rows, the runtime and the `Sharded` stay. Collective; nothing but the ranks'
    outcome is sent.

    Raises ShardingError, with nothing changed, where csrc/runtime/runtime.hpp says so. A later error, of no memory for
    hooks, leaves the model unusable, and says so.
    """
    (model, sharded), runtime = resharding.parts[0], resharding.parts[0][1].runtime
    together = Together(sharded.group, "regrouping the model")
    warn_of_another_machine(plan.hardware, sharded.device, together.world_size * _replica(plan))
    resharding.rows_stay()

    def put() -> None:
        sharded.plan = plan
        put_on_modules(model, sharded)
        copyable(model, _shard_copy)
        register(model, sharded)
        show_again(sharded.tree.known)

    together.do("regrouping", lambda: runtime.regroup(_units(plan, sharded.index, splits_of(plan))))
    resharding.begun()
    _tell_limits(runtime, plan)
    together.do("regrouping the model's calls", put)
    _measure_rest(sharded)


def _replica(plan: Plan) -> int:
    """Ranks that hold the model together, of all the plan's stages."""
    stage = plan.searched.stage if plan.searched is not None else None
    return stage.stages * stage.tensor_parallel if stage is not None else 1


def _shard_copy(model: nn.Module, source: Sharded, rows: CopiedRows) -> Sharded:
    """Shard a copy of a model like the model. Collective."""
    together = Together(source.group, "copying a sharded model")
    number = agree(together, model, source.plan, None, source.policy, source.how.backend_memory)
    how = replace(source.how, plan=source.plan, together=together, number=number)
    sharded = _cut_and_install(model, how, rows.of(model), AsItWas(model))
    sharded.pipeline = source.pipeline
    if source.dtensors:
        show_dtensors(sharded)
    _measure_rest(sharded)
    return sharded


def _cut_and_install(
    model: nn.Module, how: Manner, placing: Placing | CopiedRows | None, was: AsItWas
) -> Sharded:
    """Collective; see Note [All or nothing]."""
    runtime = _cut(model, how, placing, was)
    sharded = how.together.do("sharding the model", lambda: _install(model, how, runtime))
    make_meshes(sharded)
    return sharded


def _cut(model: nn.Module, how: Manner, placing: Placing | CopiedRows | None, was: AsItWas) -> _C.Runtime:
    """Replace parameters by this rank's part of rank 0's values. Collective."""
    plan, together, device = how.plan, how.together, how.device
    together.do("installing torch's hooks", lambda: _install_tools(device))
    lane = lane_group(how.group, device)
    collectives = lane.collectives
    names = [name for name, _ in model.named_parameters()]
    splits, offloaded = splits_of(plan), _offloaded(model, how)
    dtypes = parameter_dtypes(model, how.policy)
    parts = _parts(how, lane, plan.separate_reductions and device.type != "cpu")
    if how.backend_memory:
        together.do(
            "looking for the backend's memory", lambda: need_backend_memory(collectives, how.group, device)
        )
        collectives.all_reduce_mean([torch.zeros(1, device=device)])  # creates the pool's communicator

    def runtime_of_parts() -> _C.Runtime:
        index = {name: i for i, name in enumerate(names)}
        params = [
            _spec(n, p, splits.get(n), placing, dtypes, n in offloaded) for n, p in model.named_parameters()
        ]
        units = _units(plan, index, splits)
        was.runtime = _C.Runtime(
            lane.name, device, params, units, how.number, backend_memory=how.backend_memory, **parts
        )
        return was.runtime

    runtime = together.do("sharding the parameters", runtime_of_parts)
    _tell_limits(runtime, plan)
    if placing is None:
        together.do("receiving rank 0's parameters", lambda: was.make_room(together.rank))
        was.share_values(runtime, collectives)
    else:
        placing.fill(runtime, collectives)
        together.do("placing the parameters", placing.commit)
    return runtime


def _offloaded(model: nn.Module, how: Manner) -> set[str]:
    """Names of the parameters whose shards rest in host memory."""
    return offloaded_names(how.plan, dict(model.named_parameters()), how.offload, how.device)


def _tell_limits(runtime: _C.Runtime, plan: Plan) -> None:
    runtime.set_prefetch(plan.prefetch, plan.gather_bytes)
    if plan.predicted is not None:
        runtime.set_budget(
            f"The plan predicted a peak of {plan.predicted.peak_memory_bytes / 2**20:.1f} MiB. "
        )


def _install(model: nn.Module, how: Manner, runtime: _C.Runtime) -> Sharded:
    """Install hooks and forwards, so that the model's calls gather, compute and save as the plan says."""
    names = [name for name, _ in model.named_parameters()]
    sharded = Sharded(how, names, runtime)
    sharded.tree = Tree(model, sharded, sharded.lane.collectives)
    mixed = parameter_dtypes(model, how.policy)
    wrap_parameters(model, runtime, sharded.index, mixed, how.device, sharded.split_names)
    put_on_modules(model, sharded)
    copyable(model, _shard_copy)
    sharded.local_bytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    register(model, sharded)
    keep_torch_tools(model)
    return sharded


def _spec(
    name: str,
    parameter: nn.Parameter,
    split: _C.SplitSpec | None,
    placing: Placing | CopiedRows | None,
    dtypes: Mapping[str, tuple[torch.dtype | None, torch.dtype | None]],
    offload: bool,
) -> _C.ParamSpec:
    compute, reduce = dtypes.get(name, (None, None))
    if placing is None:
        return _C.ParamSpec(name, parameter, split, None, compute, reduce)
    shape = list(parameter.shape)
    local = placing.local(name, offload)
    return _C.ParamSpec(name, placing.stand_in(name), split, shape, compute, reduce, offload, local)


def _parts(how: Manner, lane: LaneGroup, separate_reductions: bool) -> dict[str, str]:
    """The groups that the runtime needs besides the lane's; every rank creates them in this order.

    What runs on different lanes has groups of its own.
    """
    parts, grid, group = {}, how.grid, how.group
    ways = ways_to_tell_hosts_apart(how.plan)
    # With one host, or one rank on each, two levels are one.
    levels = grid is not None and 1 < len(grid.lines) < how.together.world_size
    by_hosts = levels and "by_hosts" in ways
    if grid is not None:
        parts["shard_group"] = lane.part(group, grid.lines)
        if by_hosts or "inside_hosts" in ways:
            parts["replicate_group"] = lane.part(group, grid.columns)
        if by_hosts:
            parts["between_group"] = lane.part(group, grid.columns, "gathers")
    if separate_reductions:
        parts["reductions_group"] = lane.part(group, [range(dist.get_world_size(group))], "reductions")
        if grid is not None:
            parts["shard_reductions_group"] = lane.part(group, grid.lines, "reductions")
    return parts


def _units(plan: Plan, index: dict[str, int], splits: dict[str, _C.SplitSpec]) -> list[_C.UnitSpec]:
    operators = {o.name: o for o in plan.description.operators}
    units = []
    for members in plan.units:
        mode = getattr(_C.Mode, plan.choices[members[0]].mode)
        label = members[0] if len(members) == 1 else f"{members[0]} .. {members[-1]}"
        names = [p.name for member in members for p in operators[member].parameters]
        split = [n for n in names if n in splits]
        units.append(_C.UnitSpec(label, mode, [index[n] for n in (split or names)]))
        # A split layer's bias is small compared to its weight: not worth a separate gather.
        if split and (rest := [index[n] for n in names if n not in splits]):
            units.append(_C.UnitSpec(f"{label} bias", _C.Mode.NO_SHARD, rest))
    return units


def _install_tools(device: torch.device) -> None:
    install_torch_tools()
    if device.type == "cpu":
        _C.memory_meter_install()


def _measure_rest(sharded: Sharded) -> None:
    sharded.resting_bytes = _C.memory_live_bytes()
    _C.memory_reset_peak()
