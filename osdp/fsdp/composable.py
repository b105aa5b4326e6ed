"""fully_shard: OSDP's own with a plan; without one like FSDP2's, called for blocks first and for the model
last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from osdp.base.kept_state import outside_inference_mode
from osdp.errors import InvalidProblemError, ShardingError
from osdp.fsdp.deferred import defer, share_parameters, taking_up
from osdp.fsdp.first_forward import wait_for_inputs
from osdp.fsdp.fsdp_module import as_fsdp_module, parameters_of_unit
from osdp.fsdp.options import Options
from osdp.fsdp.shard import separate_parts, shard
from osdp.plan.plan import Plan
from osdp.sharding.dtensor_parameters import refuse_slices, show_dtensors
from osdp.sharding.fully_shard import fully_shard as shard_by_plan
from osdp.sharding.hybrid_mesh import GroupLike
from osdp.sharding.parameter_settings import STAYS_IF_KEPT, change_setting
from osdp.sharding.sharded_model import runtime_of, sharded_of
from osdp.sharding.state_dict_form import StateDictForm


class _Omitted:
    """Marks an omitted `plan`, to distinguish it from plan=None, which is probably a mistake."""

    def __repr__(self) -> str:
        return "<without>"


_OMITTED = _Omitted()
# fully_shard returns what it is given.
_Modules = TypeVar("_Modules", bound=nn.Module | Sequence[nn.Module])


@outside_inference_mode
def fully_shard(
    module: _Modules,
    plan: Plan | _Omitted = _OMITTED,
    process_group: GroupLike | None = None,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: object = None,
    offload_policy: object = None,
    ignored_params: Iterable[nn.Parameter] | None = None,
    dp_mesh_dims: object = None,
    dtensor_parameters: bool | None = None,
    **options: Any,
) -> _Modules:
    """Shard `module` in place, and return it. Collective over the process group, or the mesh (default: all ranks).

    With a `plan`, `module` is sharded as the plan says; the keywords are those of
    `osdp.sharding.fully_shard.fully_shard`.

    Without a plan it works like torch's `fully_shard`: it is called for the blocks first, then for the model;
    each becomes a unit that is gathered at its call (docs/drop-in.md describes each argument). `module` may
    be a list of modules; if they share a parameter, they are sharded when the model around them is.
    `reshard_after_forward=False` is SHARD_GRAD_OP; True and None are FULL_SHARD, or HYBRID_SHARD with a mesh of two
    dimensions; a number n is FULL_SHARD_HPZ with hosts of n consecutive ranks each. `mp_policy` and `offload_policy`
    are torch's objects or OSDP's.

    `dtensor_parameters`: whether parameters are DTensors outside of forward and backward, as FSDP2's are, with DTensors as
    gradients and optimizer states. By default they are without a plan; with one they are plain tensors that hold this
    rank's rows, on which optimizers are faster (docs/dtensor.md). In state dicts sharded ones are DTensors in any case.

    Raises InvalidProblemError for unsupported arguments, and the errors of
    `osdp.sharding.fully_shard.fully_shard`.

    >>> for block in model.blocks:
    ...     osdp.fully_shard(block, reshard_after_forward=True)
    >>> osdp.fully_shard(model)
    """
    torchs = {"mesh": mesh, "reshard_after_forward": reshard_after_forward, "mp_policy": mp_policy}
    torchs |= {"offload_policy": offload_policy, "shard_placement_fn": shard_placement_fn}
    torchs |= {"ignored_params": ignored_params}
    if not isinstance(plan, _Omitted):
        if only := [name for name, value in torchs.items() if value is not None]:
            raise InvalidProblemError(
                f"{only[0]}= cannot be combined with a plan: the plan decides how everything is sharded"
            )
        if not isinstance(module, nn.Module):
            raise InvalidProblemError(
                f"a plan is for one model, but got a {type(module).__name__}: pass the model that contains the modules"
            )
        given = Options(process_group=process_group, device_mesh=options.get("device_mesh"))
        with separate_parts(module, given), taking_up(module, given):
            if dtensor_parameters:
                refuse_slices(plan)
            shard_by_plan(module, plan, process_group, **options)
            if dtensor_parameters:
                show_dtensors(runtime_of(module))
        return module
    parts: Sequence[nn.Module] = [module] if isinstance(module, nn.Module) else module
    _refuse(parts, dp_mesh_dims, shard_placement_fn)
    told = Options.of(
        (),
        {
            "process_group": process_group,
            "device_mesh": mesh,
            **_mode(reshard_after_forward, mesh, process_group, planned=options.get("memory") is not None),
            "mixed_precision": mp_policy,
            "cpu_offload": offload_policy,
            "ignored_states": ignored_params,
            "initialise": None,
            **options,
        },
    )
    together = share_parameters(parts)
    for part in parts:
        if together:
            defer(part, told)
        else:
            shard(part, told, StateDictForm("sharded"))
        as_fsdp_module(part)
        if dtensor_parameters is not False and (sharded := sharded_of(part)) is not None:
            show_dtensors(sharded)
        if told.reshard_after_forward is False:
            change_setting(parameters_of_unit(part), STAYS_IF_KEPT, True)  # over forwards, as torch's
        wait_for_inputs(part, told)
    return module


def _mode(
    reshard_after_forward: bool | int | None, mesh: DeviceMesh | None, group: GroupLike | None, planned: bool
) -> dict[str, Any]:
    """Options: to so many ranks each parameter is resharded after forward. 1: it stays gathered."""
    n = reshard_after_forward
    over = group if mesh is None else mesh
    two_dimensions = isinstance(over, tuple) or (isinstance(over, DeviceMesh) and over.ndim > 1)
    if n is None or isinstance(n, bool) or two_dimensions or planned:
        return {"reshard_after_forward": n is not False}
    assert not isinstance(over, tuple)
    world = over.size() if isinstance(over, DeviceMesh) else dist.get_world_size(over)
    if n < 1 or world % n:
        raise InvalidProblemError(
            f"reshard_after_forward={n} must divide the {world} ranks that the module is sharded over"
        )
    if n in (1, world):
        return {"reshard_after_forward": n > 1}
    return {"sharding_strategy": "FULL_SHARD_HPZ", "ranks_per_host": n}


def _refuse(parts: Sequence[nn.Module], mesh_dims: object, placement: Callable[..., Any] | None) -> None:
    """Raises InvalidProblemError for requests that would be sharded differently than asked."""
    from torch.distributed.tensor import Shard

    if any(type(part).__name__ == "OptimizedModule" for part in parts):
        raise ShardingError(
            "fully_shard got what torch.compile(module) returned: another module, around the one that is to be sharded. "
            "Compile in place, module.compile(), or shard the module and then compile it"
        )
    if mesh_dims is not None:
        raise InvalidProblemError(
            "dp_mesh_dims is not supported: pass the submesh of these dimensions as mesh="
        )
    if placement is None:
        return
    for part in parts:
        for name, parameter in part.named_parameters():
            placed = placement(parameter)
            if placed is not None and not isinstance(placed, Shard):
                raise InvalidProblemError(
                    f"shard_placement_fn returned {placed!r} for {name!r}; only Shard(dim) and None "
                    "are supported (and OSDP always shards rows)"
                )
