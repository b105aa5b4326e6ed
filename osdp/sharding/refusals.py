"""What fully_shard refuses: process groups, plans and models that it cannot shard. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import distributed as dist
from torch import nn

from osdp import _C
from osdp.base.modules import HANDLES
from osdp.description.describe import describe
from osdp.errors import InvalidProblemError, PlanMismatchError, ProcessGroupError, ShardingError
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import parameters_with
from osdp.plan.validation import check_same_model, validate
from osdp.ranks.backends import backend_of
from osdp.sharding.compile_hooks import compiled_modules
from osdp.sharding.sharded_model import in_sharded_models
from osdp.sharding.shared_memory import elements_overlap, refuse_aliases
from osdp.sharding.torch_patches.other_parallels import refuse_others


def _refuse_overlapping(model: nn.Module, without_memory: Collection[int]) -> None:
    """Raises ShardingError for a tensor whose elements share memory (`expand`, some of `as_strided`): rank 0's values
    cannot be written to it, and its bytes are fewer than its elements. For one of inference mode, which is not written to
    either. And for one whose memory does not hold its values but their conjugates (`conj()` is lazy) or negatives."""
    own = [(name, p) for name, p in model.named_parameters() if id(p) not in without_memory]
    kinds = [("buffer", model.named_buffers()), ("parameter", own)]
    for what, tensors in kinds:
        for name, tensor in tensors:
            if tensor.is_conj() or tensor.is_neg():
                resolved = "resolve_conj" if tensor.is_conj() else "resolve_neg"
                raise ShardingError(
                    f"{what} '{name}' is a lazy {'conjugate' if tensor.is_conj() else 'negative'}, whose memory holds "
                    f"other values than its own: register it with .{resolved}(), before fully_shard"
                )
            if tensor.is_inference():
                raise ShardingError(
                    f"{what} '{name}' was made inside torch.inference_mode(), and rank 0's values cannot be written to "
                    "such a tensor outside of it: register a .clone() made outside, before fully_shard"
                )
            if not tensor.is_meta and elements_overlap(tensor):
                raise ShardingError(
                    f"{what} '{name}' is an expanded tensor: of shape {tuple(tensor.shape)} and strides "
                    f"{tensor.stride()}, several of its elements share memory, and rank 0's values cannot be written "
                    "to it. Register it with .contiguous() (after expand or as_strided), before fully_shard"
                )


def need_process_group() -> None:
    if not dist.is_available() or not dist.is_initialized():
        raise ProcessGroupError(
            "no process group: start the script with torchrun and call "
            "torch.distributed.init_process_group() first (a single process needs one too, with "
            "world_size=1)"
        )


def usable_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    group = group if group is not None else dist.group.WORLD
    if group is None or not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise ProcessGroupError(
            "this process is not a rank of the given process group: only its ranks may shard the model"
        )
    return group


def check_ranks(plan: object, group: dist.ProcessGroup) -> None:
    """Raises PlanMismatchError for a plan that is for another number of ranks than `group` has. Called before anything is
    exchanged: a script that shards on the plan's ranks alone would wait for the others until the timeout."""
    wanted, there = getattr(plan, "world_size", None), dist.get_world_size(group)
    if wanted not in (None, there):
        raise PlanMismatchError(
            f"the plan was made for {wanted} ranks, but the process group has {there}: search again with "
            f"world_size={there}, or pass a process group of {wanted} ranks"
        )


def check_plan(plan: object) -> None:
    """Raises unless it is a plan, with choices that exist."""
    if not isinstance(plan, Plan):
        raise InvalidProblemError(
            f"plan must be an osdp.Plan, got a {type(plan).__name__}: make one with osdp.search(...), "
            "osdp.Plan.uniform(...) or osdp.Plan.load(path)"
        )
    validate(plan)


def check_plan_and_model(
    model: nn.Module,
    plan: Plan,
    world_size: int,
    moves: bool,
    without_memory: Collection[int],
    wrapped: bool,
) -> None:
    """`moves`: parameters will be moved to the device of computation, from wherever they are. `without_memory`: ids of
    those that are sharded already, and have a shape without memory. `wrapped`: by fully_shard without a plan, or the
    class."""
    refuse_twice(model)
    _refuse_shards(model)
    # One unit, as fully_shard(block) makes without a plan, is gathered at once by anyone.
    if "" in compiled_modules(model) and not (wrapped and len(plan.units) <= 1):
        raise ShardingError(
            f"{type(model).__name__} is compiled as a whole, so all of its parameters would be "
            "gathered at once: compile its blocks before fully_shard (block.compile()), or the "
            "model after it"
        )
    refuse_others(model)
    _refuse_overlapping(model, without_memory)
    check_same_model(plan, describe(model))
    refuse_aliases(model, parameters_with(plan, "sharded") if world_size > 1 else ())
    if with_gradient := [name for name, p in model.named_parameters() if p.grad is not None]:
        raise ShardingError(
            f"parameter '{with_gradient[0]}' already has a gradient (one of {len(with_gradient)}), "
            "which is full and this rank's own. Call model.zero_grad() before fully_shard, and "
            "compute gradients afterwards"
        )
    devices = {p.device for p in model.parameters() if not p.is_meta}
    if len(devices) > 1 and not moves:
        raise ShardingError(
            f"parameters are on several devices: {sorted(map(str, devices))}; move them to one, or pass "
            "device_id="
        )


def refuse_twice(model: nn.Module) -> None:
    """Raises ShardingError if the model, or a part of it, is sharded already."""
    for name, module in model.named_modules():
        if module in HANDLES:
            what = f"'{name}', a {type(module).__name__} inside the model," if name else type(module).__name__
            raise ShardingError(
                f"{what} is already sharded: call fully_shard once, on the outermost model. Its parts "
                "need no wrapping as with FSDP: the plan decides what is gathered together"
            )


def _refuse_shards(model: nn.Module) -> None:
    """Raises ShardingError if a parameter belongs to another sharded model, and so is only this rank's
    rows."""
    for other, theirs, parameter in in_sharded_models(model.parameters()):
        name = next(name for name, p in model.named_parameters() if p is parameter)
        raise ShardingError(
            f"parameter '{name}' is already sharded, as '{theirs}' of a {type(other).__name__} that is not in this model, "
            f"a {type(model).__name__}. Shard a part before the model around it. Two parts that are tied by a parameter "
            "are sharded with the model around both: wrap them without a plan, over the same ranks, or that model alone"
        )


def need_backend_memory(collectives: _C.Collectives, group: dist.ProcessGroup, device: torch.device) -> None:
    if not collectives.has_memory:
        raise ProcessGroupError(
            f"allocate_memory_from_process_group_for_comm: backend {backend_of(group, device)!r} "
            f"cannot allocate tensors on {device}. Leave the option out, or use nccl on GPUs whose "
            "driver supports multicast"
        )
