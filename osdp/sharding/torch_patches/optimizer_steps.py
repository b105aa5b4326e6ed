"""Checks before optimizer steps: steps that would differ from those of one process raise an error, with
nothing changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from osdp.base.modules import not_a_frame
from osdp.errors import ShardingError
from osdp.sharding.dtensor_parameters import shows_dtensors
from osdp.sharding.sharded_model import sharded_models
from osdp.sharding.torch_patches.elementwise_probe import check_before_step
from osdp.sharding.torch_patches.replaced import hook
from osdp.sharding.whole_parameters import check_replicas


def watch_steps() -> None:
    """Install a hook that every `Optimizer.step` calls first."""
    disable: Any = torch.compiler.disable  # the step may be compiled; the checks cannot be
    check = disable(_before_step)

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        return check(optimizer, args, kwargs, compiled=get_eval_frame_callback() is not None)

    before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
    hook(register_optimizer_step_pre_hook(not_a_frame(before_step)))


def _refuse_dtensors(optimizer: Optimizer) -> None:
    if shows_dtensors(p for group in optimizer.param_groups for p in group["params"]):
        raise ShardingError(
            f"{type(optimizer).__name__}.step() is compiled, and Dynamo does not know the parameters that OSDP shows "
            "as DTensors. Step outside of torch.compile, or shard the model with a plan: its parameters are plain tensors"
        )


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any, compiled: bool) -> tuple[Any, Any] | None:
    """`args`: the optimizer and the arguments of `step`. With a closure, which computes the gradients, they
    are checked after it."""
    if compiled:
        _refuse_dtensors(optimizer)
    _let_go(optimizer)
    positional = len(args) > 1 and callable(args[1])
    named = callable(kwargs.get("closure"))
    check_before_step(optimizer, closure=positional or named)
    if positional:
        return (args[0], _then_refuse(optimizer, args[1]), *args[2:]), kwargs
    if named:
        return args, {**kwargs, "closure": _then_refuse(optimizer, kwargs["closure"])}
    _refuse_unreduced(optimizer)
    check_replicas(optimizer)
    return None


def _let_go(optimizer: Optimizer) -> None:
    """Units that stay gathered would be stale: Note [Units that stay gathered]."""
    for model, sharded in sharded_models():
        if not sharded.runtime.in_pass and sharded.runtime.any_stays and _steps(optimizer, model):
            sharded.runtime.let_go()


def _steps(optimizer: Optimizer, model: nn.Module) -> bool:
    stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in stepped for p in model.parameters())


def _then_refuse(optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def checked() -> Any:
        loss = closure()
        _let_go(optimizer)
        _refuse_unreduced(optimizer)
        check_replicas(optimizer)
        return loss

    return checked


def _refuse_unreduced(optimizer: Optimizer) -> None:
    for _, sharded in sharded_models():
        if not sharded.runtime.kept_unreduced:  # the usual case
            continue
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        index = sharded.runtime.unreduced([i for i, p in enumerate(sharded.tree.known) if id(p) in stepped])
        if index is not None:
            raise ShardingError(
                f"{sharded.runtime.rank_name}: {type(optimizer).__name__}.step() was called with "
                "gradients that set_requires_gradient_sync(False) or osdp.no_sync kept and no backward has averaged "
                f"yet (parameter {sharded.name_of(index)!r}): ranks would diverge. Run the last micro-batch's "
                "backward outside of no_sync, then step"
            )
