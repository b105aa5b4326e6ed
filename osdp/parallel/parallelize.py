"""parallelize: carries out a ParallelPlan."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from osdp.errors import DisagreementError, InvalidProblemError, PlanMismatchError, ProcessGroupError
from osdp.fsdp.composable import fully_shard
from osdp.parallel.first_values import check_values, take_first
from osdp.parallel.mean_loss import MeanLoss
from osdp.parallel.owners import Owners
from osdp.parallel.pipeline import Pipeline
from osdp.parallel.shared_buffers import names_of_buffers
from osdp.parallel.split_outputs import SplitOutputs
from osdp.parallel.stage import Stage
from osdp.parallel.stage_module import check_entries, cut_to_stage
from osdp.parallel.tensor_styles import check_styles, parallelize_stage
from osdp.plan.parallel_plan import ParallelPlan, degree_problems
from osdp.ranks.rank_group import Together
from osdp.sharding.fully_shard import fully_shard as shard_by_plan
from osdp.sharding.replaced_parameters import note_replaced
from osdp.sharding.rollback import ModulesAsTheyWere
from osdp.sharding.sharded_model import runtime_of
from osdp.sharding.whole_parameters import whole_parameters

_ITS_OWN = {"model", "plan", "process_group", "device_mesh", "ranks_per_host", "resharding"}
_SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def parallelize(
    model: nn.Module,
    plan: ParallelPlan,
    loss_fn: Callable[[Tensor, Any], Tensor],
    *,
    tp_plan: Mapping[str, Any] | None = None,
    **options: Any,
) -> Pipeline:
    """Divide `model` as `plan` says: tensor parallelism, stages, and each stage sharded by its plan. Collective over all
    ranks; `model` is cut to this rank's stage in place.

    `loss_fn(output, target)`: the mean over a micro-batch, computed by the last stage. `tp_plan`: torch's styles, as
    `osdp.search` got them, needed where they have layouts of their own (SequenceParallel). `options` are those of
    `osdp.fully_shard` with a plan (initialise=, cpu_offload=, dtensor_parameters=, ...). All ranks get rank 0's parameters
    and buffers. Ranks are numbered (pipeline, data, tensor), as the search assumed. docs/pipelines.md says what a model's
    forward may do.

    Raises, on all ranks and with nothing changed (values may be rank 0's): ProcessGroupError without a process group,
    PlanMismatchError for another world size or model, DisagreementError if ranks differ in the plan, and
    InvalidProblemError for a stage that has no parameters or no module where it begins, a parameter tied across stages,
    DTensors, styles without layouts, and a model on the meta device that several stages would initialise; also the errors
    of `osdp.fully_shard`.

    >>> plan = osdp.search(model, (tokens,), world_size=4, global_batch_size=16, pipeline_parallel=2, memory="8GB")
    >>> pipeline = osdp.parallelize(model, plan, loss_fn)
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ProcessGroupError(
            "osdp.parallelize needs a process group: call torch.distributed.init_process_group first"
        )
    # Before anything is exchanged: a script that calls this on the plan's ranks alone would wait for the others.
    there = dist.get_world_size()
    if isinstance(plan, ParallelPlan) and plan.world_size != there:
        raise PlanMismatchError(
            f"the plan is for {plan.world_size} ranks ({plan.tensor_parallel} x {plan.pipeline_parallel} x "
            f"{plan.data_parallel}), and there are {there}, all of which call osdp.parallelize: search again with "
            f"world_size={there}"
        )
    together = Together(None, "osdp.parallelize")
    owners = together.do("checking the plan", lambda: _checked(model, plan, loss_fn, tp_plan, options))
    check_values(model, plan, options, together)
    if len(set(together.all(hashlib.sha256(plan.dumps().encode()).hexdigest()))) > 1:
        raise DisagreementError(
            "ranks have different plans: search on one rank and load its file, or broadcast it"
        )
    device = _device_of(model, options.get("device_id"))
    mesh = _mesh(plan, device)
    stage = mesh["pp"].get_local_rank()
    was, before = ModulesAsTheyWere(model), dict(model.named_parameters(remove_duplicate=False))
    try:
        take_first(model, mesh["pp"])
        buffers = names_of_buffers(model) if len(plan.stages) > 1 else {}
        whole_shapes = plan.tensor_parallel == 1 or not {"sequence", "module"} & set(plan.tp_plan.values())
        passing = cut_to_stage(model, owners, stage, _entries(plan), device, whole_shapes)
        passing.buffers = buffers
        take_first(model, mesh["tp"])
        if plan.tensor_parallel > 1:
            divided = parallelize_stage(model, plan.description, plan.tp_plan, tp_plan, mesh["tp"])
            groups = {o.name: o.output_groups for o in plan.description.operators if o.output_groups}
            passing.cuts = SplitOutputs(divided, groups)
            passing.whole = whole_parameters(model)
        fully_shard(model, plan.stages[stage].plan, device_mesh=mesh["dp"], **options)
    except BaseException:
        was.put_back()
        raise
    note_replaced(before, model, "osdp.parallelize")
    if len(plan.stages) > 1:
        sharded = runtime_of(model)
        sharded.pipeline, sharded.stages = dist.group.WORLD, mesh["pp"].get_group()
        size = plan.data_parallel * plan.tensor_parallel
        together.name_ranks([f"rank {rank} (stage {rank // size})" for rank in range(plan.world_size)])
    made = Stage(model, stage, len(plan.stages), device, group=mesh["pp"].get_group())
    made.passing = passing
    passing.in_schedule = len(plan.stages) == 1
    # torch has no 1F1B for fewer micro-batches than stages; the search plays GPipe then, too.
    kind = _SCHEDULES[plan.schedule] if plan.micro_batches >= len(plan.stages) else ScheduleGPipe
    # torch would divide `.grad` after each step, and so what earlier steps accumulated there.
    loss = MeanLoss(loss_fn, plan.micro_batches)
    schedule = kind(made, plan.micro_batches, loss_fn=loss, scale_grads=False)
    return Pipeline(plan, stage, model, mesh, schedule, passing, loss)


def _checked(
    model: nn.Module,
    plan: ParallelPlan,
    loss_fn: object,
    tp_plan: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Owners:
    if not isinstance(plan, ParallelPlan):
        raise InvalidProblemError(
            f"osdp.parallelize takes the osdp.ParallelPlan of a search with degrees, not a {type(plan).__name__}; with a "
            "Plan use osdp.fully_shard(model, plan)"
        )
    for field, why in degree_problems(plan):
        raise InvalidProblemError(f"the plan's {field} {why}: search again, or load its file anew")
    if not callable(loss_fn):
        raise InvalidProblemError(f"loss_fn must be a function of output and target, not {loss_fn!r}")
    known = inspect.signature(shard_by_plan).parameters.keys() | {"dtensor_parameters"}
    if unknown := sorted(options.keys() - known | options.keys() & _ITS_OWN):
        raise InvalidProblemError(
            f"osdp.parallelize has no option {unknown[0]}=: it takes those of osdp.fully_shard with a plan, but for groups "
            "and meshes, which it makes itself"
        )
    owners = Owners(model, plan)
    check_entries(model, owners, _entries(plan), plan.description)
    if plan.tensor_parallel > 1:
        check_styles(plan.description, plan.tp_plan, tp_plan, model)
    return owners


def _entries(plan: ParallelPlan) -> list[str]:
    return [stage.modules[0] for stage in plan.stages]


def _mesh(plan: ParallelPlan, device: torch.device) -> DeviceMesh:
    sizes = (plan.pipeline_parallel, plan.data_parallel, plan.tensor_parallel)
    return init_device_mesh(device.type, sizes, mesh_dim_names=("pp", "dp", "tp"))


def _device_of(model: nn.Module, asked: Any) -> torch.device:
    if asked is not None:
        return torch.device(asked)
    device = next(model.parameters()).device
    if device.type != "meta":
        return device
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")
