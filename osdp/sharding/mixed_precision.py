"""MixedPrecision: dtypes of computation and of gradient reduction that differ from the dtypes of shards.

Note [Three dtypes]
Parameters, gradients and optimizer state keep the model's dtype (usually fp32), which optimizers,
checkpoints, state dicts and summon_full_params see. Parameters are cast before they are gathered, gradients
before they are averaged; the mean is added to the gradient in the parameter's own dtype.
csrc/runtime/store/precision.hpp describes the mechanism.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from osdp.base.cast_floats import CastInputs, cast_floats
from osdp.errors import PlanMismatchError
from osdp.plan.mixed_precision import (
    MixedPrecision,
    as_mixed_precision,
    at_blocks,
    dtypes_of,
    kept_as_they_are,
    named_precision,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from osdp.plan.plan import Plan

    Dtypes = dict[nn.Module, dict[str, torch.dtype]]  # of buffers, by module and key


def chosen_precision(wanted: object, plan: Plan, model: nn.Module) -> MixedPrecision | None:
    """The mixed precision of `fully_shard(model, plan, mixed_precision=wanted)`; None: all dtypes are the
    model's.

    `wanted`: None (the plan's), an osdp.MixedPrecision, torch's MixedPrecision or MixedPrecisionPolicy, True
    (fp16, as in FairScale), or a name in PRECISIONS. Raises PlanMismatchError if the plan was searched for a
    different one.
    """
    planned = named_precision(plan.precision)
    if wanted is None:
        return planned and at_blocks(planned, model)
    policy = as_mixed_precision(wanted)
    other = dtypes_of(policy) != dtypes_of(planned)
    if other and (plan.searched is not None or planned is not None):
        raise PlanMismatchError(
            f"mixed_precision={wanted!r} differs from the plan's precision={plan.precision!r}: search "
            "again with precision=, or leave mixed_precision out"
        )
    return policy and at_blocks(policy, model)


def install_precision(model: nn.Module, policy: MixedPrecision) -> Dtypes:
    """Cast buffers, and install hooks that cast arguments and results of the model's and its parts' calls.
    Returns the cast buffers' original dtypes."""
    buffers = cast_buffers(model, policy)
    for name, own in (("", policy), *(policy.parts or ())):
        module = model.get_submodule(name)
        if own.cast_forward_inputs and own.param_dtype is not None:
            # Before the runtime's own hook, which must see the same inputs as the module.
            module.register_forward_pre_hook(CastInputs(own.param_dtype), prepend=True, with_kwargs=True)
        if own.output_dtype is not None:
            module.register_forward_hook(_CastOutputs(own.output_dtype))
    return buffers


class _CastOutputs:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return cast_floats(output, self.dtype)


def cast_buffers(model: nn.Module, policy: MixedPrecision, only: Collection[int] | None = None) -> Dtypes:
    """Cast buffers; returns their original dtypes. `only`: ids of the buffers to cast; by default all."""
    kept = {id(b) for module in kept_as_they_are(model, policy) for b in module.buffers(recurse=False)}
    cast: dict[int, Any] = {}
    were: Dtypes = {}
    for prefix, module in model.named_modules():
        own: dict[str, torch.dtype] = {}
        wanted = policy.of(prefix).buffer_dtype
        for key, buffer in module._buffers.items():
            if wanted is None or buffer is None or not buffer.is_floating_point() or id(buffer) in kept:
                continue
            if only is not None and id(buffer) not in only:
                continue
            own[key] = buffer.dtype
            cast.setdefault(id(buffer), (buffer, buffer.to(wanted)))  # shared buffers stay shared
            module._buffers[key] = cast[id(buffer)][1]
        if own:
            were[module] = own
            module.register_state_dict_post_hook(_OwnDtype(own))
    return were


class _OwnDtype:
    """State dict hook: shows buffers in their original dtypes."""

    def __init__(self, dtypes: dict[str, torch.dtype]) -> None:
        self.dtypes = dtypes

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for key, dtype in self.dtypes.items():
            if prefix + key in state:
                state[prefix + key] = state[prefix + key].to(dtype)
