"""MixedPrecision: what a step computes in and averages gradients in, where that is not what a rank keeps.

Note [Three dtypes]
Parameters, gradients and optimizer state keep the model's dtype (fp32, usually): that is what optimizers, checkpoints,
state dicts and summon_full_params see. Parameters are cast before they travel, gradients before they are averaged; the
mean is added to the gradient in the parameter's own dtype. csrc/runtime/precision.hpp tells the mechanism.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from osdp.errors import InvalidProblemError, PlanMismatchError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from osdp.plan.plan import Plan

# What a plan may say: (parameters, reduction), the model's own dtypes where None. What stays on a rank never changes.
PRECISIONS: Mapping[str, tuple[str | None, str | None]] = {
    "fp32": (None, None),
    # The same, and what fp32 is multiplied in is TF32: torch.set_float32_matmul_precision("high") sees to it.
    "tf32": (None, None),
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "bf16-reduce-fp32": ("bfloat16", "float32"),
    "fp16-reduce-fp32": ("float16", "float32"),
}


@dataclass(frozen=True)
class MixedPrecision:
    """The dtypes of a training step, under the names of torch's FSDP (both of them). None: left as it is.

    `param_dtype`: floating-point parameters are gathered and computed with in it. `reduce_dtype`: gradients are
    averaged over the ranks in it (None: in `param_dtype`). `buffer_dtype`: floating-point buffers are kept in it; state
    dicts show their own. `cast_forward_inputs`: floating-point tensors in the arguments of the model's call are cast to
    `param_dtype`. `output_dtype`: those in what the call returns are cast to it.

    Parameters and buffers of `full_precision_modules` (None: batch norms, whose running statistics need it) stay as
    they are.

    >>> model = osdp.fully_shard(model, plan, mixed_precision=osdp.MixedPrecision(torch.bfloat16, torch.float32))
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    output_dtype: torch.dtype | None = None
    full_precision_modules: tuple[type[nn.Module], ...] | None = None

    def __post_init__(self) -> None:
        import torch

        known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for field in ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype"):
            dtype = getattr(self, field)
            if dtype is not None and dtype not in known:
                raise InvalidProblemError(
                    f"MixedPrecision.{field} is {dtype!r}; it is None or one of {', '.join(map(str, known))}"
                )

    @property
    def changes_nothing(self) -> bool:
        return not (self.param_dtype or self.reduce_dtype or self.buffer_dtype or self.output_dtype)


def chosen_precision(wanted: object, plan: Plan) -> MixedPrecision | None:
    """What `fully_shard(model, plan, mixed_precision=wanted)` does; None: every dtype is the model's own.

    `wanted`: None (as the plan says), a MixedPrecision of ours, of torch's FSDP or its MixedPrecisionPolicy, True (as
    FairScale: fp16), or a name of PRECISIONS. Raises PlanMismatchError where the plan was searched for another one.
    """
    planned = named_precision(plan.precision)
    if wanted is None:
        return planned
    policy = as_mixed_precision(wanted)
    ours = (policy.param_dtype, policy.reduce_dtype or policy.param_dtype) if policy else (None, None)
    theirs = (planned.param_dtype, planned.reduce_dtype) if planned else (None, None)
    if ours != theirs and (plan.searched is not None or planned is not None):
        raise PlanMismatchError(
            f"mixed_precision={wanted!r} is not what the plan was made for, precision={plan.precision!r}: search again "
            "with precision=, or leave mixed_precision out"
        )
    return policy


def named_precision(name: str) -> MixedPrecision | None:
    """The MixedPrecision of one of PRECISIONS, None for "fp32" and "tf32". Raises InvalidProblemError for other names."""
    import torch

    if name not in PRECISIONS:
        raise InvalidProblemError(f"precision is {name!r}; it is one of {', '.join(map(repr, PRECISIONS))}")
    param, reduce = PRECISIONS[name]
    return MixedPrecision(getattr(torch, param), getattr(torch, reduce)) if param and reduce else None


def as_mixed_precision(wanted: object) -> MixedPrecision | None:
    """Ours, from what other libraries' scripts pass. Raises InvalidProblemError for what is none of them."""
    import torch

    if isinstance(wanted, MixedPrecision):
        return None if wanted.changes_nothing else wanted
    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return MixedPrecision(torch.float16, torch.float16, torch.float16)
    if isinstance(wanted, str):
        return named_precision(wanted)
    if hasattr(wanted, "param_dtype") and hasattr(wanted, "reduce_dtype"):
        kept = getattr(wanted, "_module_classes_to_ignore", None)
        root = getattr(wanted, "cast_root_forward_inputs", False)  # torch's MixedPrecision has both
        return as_mixed_precision(
            MixedPrecision(
                wanted.param_dtype,
                wanted.reduce_dtype,
                getattr(wanted, "buffer_dtype", None),
                bool(root or getattr(wanted, "cast_forward_inputs", True)),
                getattr(wanted, "output_dtype", None),
                None if kept is None else tuple(kept),
            )
        )
    raise InvalidProblemError(
        f"mixed_precision is a {type(wanted).__name__}; it is an osdp.MixedPrecision, one of torch's FSDP, True or a "
        f"name: {', '.join(PRECISIONS)}"
    )


def parameter_dtypes(
    model: nn.Module, policy: MixedPrecision | None
) -> dict[str, tuple[torch.dtype | None, torch.dtype | None]]:
    """Parameter name -> what it is computed in and its gradient averaged in; those that keep their own are left out."""
    if policy is None or not (policy.param_dtype or policy.reduce_dtype):
        return {}
    kept = {id(t) for module in _kept_as_they_are(model, policy) for t in module.parameters(recurse=False)}
    return {
        name: (policy.param_dtype, policy.reduce_dtype)
        for name, p in model.named_parameters()
        if p.is_floating_point() and id(p) not in kept
    }


def install_precision(model: nn.Module, policy: MixedPrecision) -> dict[str, torch.dtype]:
    """Casts buffers, and hooks the model's call for its arguments and what it returns. Names of cast buffers -> what
    they were."""
    buffers = {} if policy.buffer_dtype is None else cast_buffers(model, policy)
    if policy.cast_forward_inputs and policy.param_dtype is not None:
        # Before the runtime's own hook: what it sees must be what the model sees.
        model.register_forward_pre_hook(_CastInputs(policy.param_dtype), prepend=True, with_kwargs=True)
    if policy.output_dtype is not None:
        model.register_forward_hook(_CastOutputs(policy.output_dtype))
    return buffers


class _CastInputs:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return cast_floats(args, self.dtype), cast_floats(kwargs, self.dtype)


class _CastOutputs:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return cast_floats(output, self.dtype)


def cast_floats(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating-point tensors cast: in tuples, lists, dicts and dataclasses, however nested."""
    import torch

    if isinstance(value, (torch.Tensor, torch.nn.utils.rnn.PackedSequence)):
        floating = (value if isinstance(value, torch.Tensor) else value.data).is_floating_point()
        return value.to(dtype) if floating else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(changed, field.name, cast_floats(getattr(value, field.name), dtype))
        return changed
    if isinstance(value, Mapping):
        cast = {key: cast_floats(item, dtype) for key, item in value.items()}
        return cast if type(value) is dict else _like(value, cast)
    if isinstance(value, (tuple, list)):
        items = [cast_floats(item, dtype) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _like(value: Any, cast: dict[Any, Any]) -> Any:
    """A mapping of another class than dict, with other values."""
    changed = copy.copy(value)
    for key, item in cast.items():
        changed[key] = item
    return changed


def _kept_as_they_are(model: nn.Module, policy: MixedPrecision) -> list[nn.Module]:
    from torch.nn.modules.batchnorm import _BatchNorm

    classes = policy.full_precision_modules
    return [m for m in model.modules() if isinstance(m, (_BatchNorm,) if classes is None else classes)]


def cast_buffers(
    model: nn.Module, policy: MixedPrecision, only: Collection[int] | None = None
) -> dict[str, torch.dtype]:
    """Names of the cast buffers -> what they were. `only`: ids of those to cast; by default all."""
    kept = {id(b) for module in _kept_as_they_are(model, policy) for b in module.buffers(recurse=False)}
    cast: dict[int, Any] = {}
    were: dict[str, torch.dtype] = {}
    for prefix, module in model.named_modules():
        own: dict[str, torch.dtype] = {}
        for key, buffer in module._buffers.items():
            if buffer is None or not buffer.is_floating_point() or id(buffer) in kept:
                continue
            if only is not None and id(buffer) not in only:
                continue
            own[key] = were[f"{prefix}.{key}" if prefix else key] = buffer.dtype
            cast.setdefault(
                id(buffer), (buffer, buffer.to(policy.buffer_dtype))
            )  # shared buffers stay shared
            module._buffers[key] = cast[id(buffer)][1]
        if own:
            module.register_state_dict_post_hook(_OwnDtype(own))
    return were


class _OwnDtype:
    """State dicts show buffers in the dtype that the model had them in."""

    def __init__(self, dtypes: dict[str, torch.dtype]) -> None:
        self.dtypes = dtypes

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for key, dtype in self.dtypes.items():
            if prefix + key in state:
                state[prefix + key] = state[prefix + key].to(dtype)


def fairscale_precision(
    mixed_precision: object,
    compute_dtype: torch.dtype | None,
    buffer_dtype: torch.dtype | None,
    fp32_reduce_scatter: bool,
) -> object:
    """One `mixed_precision` out of the arguments of FairScale's class; others than those of FairScale stand alone."""
    import torch

    if not isinstance(mixed_precision, bool):
        if compute_dtype is not None or buffer_dtype is not None or fp32_reduce_scatter:
            raise InvalidProblemError(
                "compute_dtype, buffer_dtype and fp32_reduce_scatter go with mixed_precision=True; "
                "a MixedPrecision has fields for them"
            )
        return mixed_precision
    if not mixed_precision:
        if fp32_reduce_scatter:
            raise InvalidProblemError("fp32_reduce_scatter needs mixed_precision=True")
        return None if buffer_dtype is None else MixedPrecision(buffer_dtype=buffer_dtype)
    compute = compute_dtype or torch.float16
    reduce = torch.float32 if fp32_reduce_scatter else compute
    return MixedPrecision(compute, reduce, buffer_dtype or compute)


def precision_name(wanted: object) -> str:
    """The name under which `osdp.search` knows it. Raises InvalidProblemError for what has none."""
    policy = as_mixed_precision(wanted)
    dtypes = (policy.param_dtype, policy.reduce_dtype or policy.param_dtype) if policy else (None, None)
    for name in PRECISIONS:
        named = named_precision(name)
        if dtypes == ((named.param_dtype, named.reduce_dtype) if named else (None, None)):
            return name
    raise InvalidProblemError(
        f"the search knows no precision of these dtypes: {wanted!r}; it knows {', '.join(PRECISIONS)}"
    )
