"""MixedPrecision: the dtypes of a training step, and their names in plans."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osdp.base.names import is_in
from osdp.description.recompute_blocks import recomputable_blocks
from osdp.errors import InvalidProblemError
from osdp.plan.precisions import PRECISIONS

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class MixedPrecision:
    """The dtypes of a training step. Fields are named as in torch's FSDP1 and FSDP2; None leaves dtypes
    unchanged.

    `param_dtype`: dtype in which floating-point parameters are gathered and used in computation.
    `reduce_dtype`: dtype in which gradients are averaged over the ranks (None: `param_dtype`).
    `buffer_dtype`: dtype in which floating-point buffers are stored; state dicts hold them in their original
    dtype. `cast_forward_inputs`: cast floating-point tensors in the arguments of the model's call to
    `param_dtype`. `output_dtype`: dtype to which floating-point tensors in the call's result are cast.

    Parameters and buffers of `full_precision_modules` (None: batch norms, whose running statistics need it)
    keep their dtypes. `parts`: pairs of a module's name and the MixedPrecision that applies to its call and
    to everything inside it instead; the innermost module's applies. None: with `cast_forward_inputs`, the model's blocks
    (osdp.description.recompute_blocks), so that their calls cast their arguments too.

    >>> model = osdp.fully_shard(model, plan, mixed_precision=osdp.MixedPrecision(torch.bfloat16, torch.float32))
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    output_dtype: torch.dtype | None = None
    full_precision_modules: tuple[type[nn.Module], ...] | None = None
    parts: tuple[tuple[str, MixedPrecision], ...] | None = None

    def __post_init__(self) -> None:
        import torch

        known = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        for field in ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype"):
            dtype = getattr(self, field)
            if dtype is not None and dtype not in known:
                raise InvalidProblemError(
                    f"MixedPrecision.{field} must be None or one of {', '.join(map(str, known))}, got "
                    f"{dtype!r}"
                )

    @property
    def changes_nothing(self) -> bool:
        """Whether every dtype is None, of all parts too."""
        own = self.param_dtype or self.reduce_dtype or self.buffer_dtype or self.output_dtype
        return not own and all(part.changes_nothing for _, part in self.parts or ())

    def of(self, name: str) -> MixedPrecision:
        """The MixedPrecision that applies to the module or parameter of that name."""
        around = [(part, own) for part, own in self.parts or () if is_in(name, part)]
        return max(around, key=lambda each: len(each[0]))[1] if around else self


def named_precision(name: str) -> MixedPrecision | None:
    """The MixedPrecision of one of PRECISIONS, None for "fp32" and "tf32". Raises InvalidProblemError for other names."""
    import torch

    if name not in PRECISIONS:
        raise InvalidProblemError(
            f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {name!r}"
        )
    param, reduce = PRECISIONS[name]
    return MixedPrecision(getattr(torch, param), getattr(torch, reduce)) if param and reduce else None


def as_mixed_precision(wanted: object, part: bool = False) -> MixedPrecision | None:
    """Convert the mixed precision objects of torch's FSDP and FairScale to OSDP's. `part`: the object was
    passed to the wrapper of a submodule. Raises InvalidProblemError for other objects."""
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
        # torch's MixedPrecision has separate flags for the root and other modules
        root = not part and getattr(wanted, "cast_root_forward_inputs", False)
        return as_mixed_precision(
            MixedPrecision(
                wanted.param_dtype,
                wanted.reduce_dtype,
                getattr(wanted, "buffer_dtype", None),
                bool(root or getattr(wanted, "cast_forward_inputs", True)),
                getattr(wanted, "output_dtype", None),
                None if kept is None else tuple(kept),
                # FSDP1 casts at the calls of wraps alone, and only where it is told to.
                () if hasattr(wanted, "cast_root_forward_inputs") else None,
            )
        )
    raise InvalidProblemError(
        "mixed_precision must be an osdp.MixedPrecision, a MixedPrecision of torch's FSDP, True or "
        f"one of {', '.join(PRECISIONS)}, got a {type(wanted).__name__}"
    )


def at_blocks(policy: MixedPrecision, model: nn.Module) -> MixedPrecision:
    """`policy` with its parts: where it has none, the blocks of `model`, whose calls then cast their arguments as FSDP2's
    blocks do. A forward may make a tensor in full precision (a rotary table, a mask) and hand it to each of them."""
    if policy.parts is not None or not policy.cast_forward_inputs or policy.param_dtype is None:
        return dataclasses.replace(policy, parts=policy.parts or ())
    own = dataclasses.replace(policy, parts=(), output_dtype=None)
    kept = set(kept_as_they_are(model, policy))
    blocks = (name for name in recomputable_blocks(model) if model.get_submodule(name) not in kept)
    return dataclasses.replace(policy, parts=tuple((name, own) for name in blocks))


def parameter_dtypes(
    model: nn.Module, policy: MixedPrecision | None
) -> dict[str, tuple[torch.dtype | None, torch.dtype | None]]:
    """Parameter name -> dtypes of its computation and of its gradient's average; parameters that keep their
    own are omitted."""
    if policy is None:
        return {}
    kept = {id(t) for module in kept_as_they_are(model, policy) for t in module.parameters(recurse=False)}
    return {
        name: (own.param_dtype, own.reduce_dtype)
        for name, p in model.named_parameters()
        if p.is_floating_point() and id(p) not in kept
        if ((own := policy.of(name)).param_dtype or own.reduce_dtype)
    }


def kept_as_they_are(model: nn.Module, policy: MixedPrecision) -> list[nn.Module]:
    from torch.nn.modules.batchnorm import _BatchNorm

    def is_kept(name: str, module: nn.Module) -> bool:
        classes = policy.of(name).full_precision_modules
        return isinstance(module, (_BatchNorm,) if classes is None else classes)

    return [module for name, module in model.named_modules() if is_kept(name, module)]


def fairscale_precision(
    mixed_precision: object,
    compute_dtype: torch.dtype | None,
    buffer_dtype: torch.dtype | None,
    fp32_reduce_scatter: bool,
) -> object:
    """The `mixed_precision` that FairScale's arguments amount to; objects of other libraries must come
    without them."""
    import torch

    if not isinstance(mixed_precision, bool):
        if compute_dtype is not None or buffer_dtype is not None or fp32_reduce_scatter:
            raise InvalidProblemError(
                "compute_dtype, buffer_dtype and fp32_reduce_scatter need mixed_precision=True; with "
                "a MixedPrecision, set its own fields"
            )
        return mixed_precision
    if not mixed_precision:
        if fp32_reduce_scatter:
            raise InvalidProblemError("fp32_reduce_scatter needs mixed_precision=True")
        return None if buffer_dtype is None else MixedPrecision(buffer_dtype=buffer_dtype)
    compute = compute_dtype or torch.float16
    reduce = torch.float32 if fp32_reduce_scatter else compute
    return MixedPrecision(compute, reduce, buffer_dtype or compute)


def dtypes_of(policy: MixedPrecision | None) -> tuple[torch.dtype | None, torch.dtype | None]:
    """Those of computation and of averages over the ranks."""
    return (policy.param_dtype, policy.reduce_dtype or policy.param_dtype) if policy else (None, None)


def precision_name(wanted: object) -> str:
    """The name of this precision in `osdp.search`. Raises InvalidProblemError for one that has no name
    there."""
    dtypes = dtypes_of(as_mixed_precision(wanted))
    for name in PRECISIONS:
        if dtypes == dtypes_of(named_precision(name)):
            return name
    raise InvalidProblemError(
        f"the search does not support a precision with these dtypes: {wanted!r}; it supports "
        f"{', '.join(PRECISIONS)}"
    )
