"""Activations that a model saves when it computes in a lower precision than its parameters have."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from osdp.base.cast_floats import CastInputs
from osdp.base.names import modules_around
from osdp.description.describe import describe
from osdp.description.model_description import SAVED_BYTES, WORK_BYTES, Kernel, ModelDescription
from osdp.errors import DescribeError
from osdp.plan.mixed_precision import at_blocks, named_precision, parameter_dtypes
from osdp.plan.precisions import PRECISIONS
from osdp.planning.arguments import one_of


def with_low_activations(
    description: ModelDescription,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    precision: str,
    device: str | None,
) -> ModelDescription:
    """`description`, made from `model` and its arguments, with the activations that are saved under `precision`.

    They are determined on a copy of the model whose parameters have the lower dtype and no data. Raises
    DescribeError if such a copy cannot be made or run (the forward depends on values).
    """
    policy = named_precision(precision)
    if policy is None:
        return description
    if device is None:  # the copy is on the meta device
        device = next((p.device.type for p in model.parameters() if not p.is_meta), "cpu")
    try:
        assert policy.param_dtype is not None
        low_model = _low_copy(model, parameter_dtypes(model, policy))
        # The casts are memory too, so the copy makes them where a sharded model does.
        for name, own in (("", policy), *(at_blocks(policy, low_model).parts or ())):
            assert own.param_dtype is not None
            cast = CastInputs(own.param_dtype)
            low_model.get_submodule(name).register_forward_pre_hook(cast, prepend=True, with_kwargs=True)
        low = describe(low_model, *args, device=device, **kwargs)
    except (DescribeError, TypeError, RuntimeError) as error:
        raise DescribeError(
            f"{description.name} cannot be described in {precision}: a copy of it with parameters in that dtype "
            f"cannot be made or run ({type(error).__name__}: {error}). Described without precision=, its activations "
            "are those of its own dtypes"
        ) from error
    matched = _bytes_by_operator(description, low)
    if matched is None:
        raise DescribeError(
            f"{description.name} cannot be described in {precision}: in that dtype other modules own its parameters"
        )
    bytes_of, of_input = matched
    inputs = {b.name: b.input_bytes_per_sample for b in low.blocks}
    lists: dict[tuple[Kernel, ...], int] = {}
    for found in bytes_of.values():
        for key in _KERNELS:
            found[key] = lists.setdefault(found[key], len(lists)) if low.kernels else -1
    return dataclasses.replace(
        description,
        operators=tuple(dataclasses.replace(o, **bytes_of[o.name]) for o in description.operators),
        blocks=tuple(
            dataclasses.replace(b, input_bytes_per_sample=inputs.get(b.name, b.input_bytes_per_sample))
            for b in description.blocks
        ),
        input_bytes_per_sample=description.input_bytes_per_sample + of_input,
        precision=precision,
        kernels=tuple(lists),
        device=low.device or description.device,
    )


def described(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], precision: str, device: str | None
) -> ModelDescription:
    """`osdp.describe` in a lower precision than the model's."""
    one_of("precision", precision, tuple(PRECISIONS))
    description = describe(model, *args, device=device, **kwargs)
    if description.sample_batch < 1:  # without a sample there are no activations
        return dataclasses.replace(description, precision=precision)
    return with_low_activations(description, model, args, kwargs, precision, device)


_KERNELS = ("forward_kernels", "backward_kernels")
_WAITING = "waiting_gradient_bytes"


def _bytes_by_operator(
    description: ModelDescription, low: ModelDescription
) -> tuple[dict[str, dict[str, Any]], int] | None:
    """By operator of `description`, what `low` holds, and the bytes per sample of its input beyond those of the
    description's; None if their operators with parameters are not the same.

    A module that computes something by itself is an operator at the place where it first saves something, which
    another dtype may change (a cast that is none saves nothing). So operators are matched by name, whatever their
    order. What an operator that only `low` has saves counts for the module around it, or for the operator before it
    that no recomputation frees; where there is neither, it is the input, cast to the lower dtype. An operator's work is
    beyond what is saved by those before it, which the order changes: the sum stays.
    """
    with_parameters = [{o.name for o in d.operators if o.parameters} for d in (description, low)]
    if with_parameters[0] != with_parameters[1]:
        return None
    found: dict[str, dict[str, Any]] = {
        o.name: {**dict.fromkeys((*SAVED_BYTES, *WORK_BYTES, _WAITING), 0), **dict.fromkeys(_KERNELS, ())}
        for o in description.operators
    }
    blocks = {o.name: o.block for o in description.operators}
    last, kept = description.operators[0].name, None  # the last one at all, and of those in no block
    of_input = dict.fromkeys(SAVED_BYTES, 0)
    held = dict.fromkeys(SAVED_BYTES, 0)  # by operators up to `o`
    needed: dict[str, tuple[int, ...]] = {}
    waiting: dict[str, int] = {}  # of every operator that is part of it at least
    for o in low.operators:
        place = next((name for name in modules_around(o.name) if name in found), "")
        last = place if place in found else last
        kept = last if blocks[last] is None else kept
        saves = found[last] if place in found else of_input if kept is None else found[kept]
        for key in SAVED_BYTES:
            saves[key] += getattr(o, key)
            held[key] += getattr(o, key)
        sums = [
            held[saved] + getattr(o, work) for saved, work in zip(SAVED_BYTES * 3, WORK_BYTES, strict=True)
        ]
        known = needed.get(last, sums)
        # Its forward and backward alone are of another module's call.
        needed[last] = (
            tuple(map(max, sums, known)) if o.name == last else (*map(max, sums[:2], known), *known[2:])
        )
        waiting[last] = min(o.waiting_gradient_bytes, waiting.get(last, o.waiting_gradient_bytes))
        for key in _KERNELS:
            at = getattr(o, key)
            found[last][key] += low.kernels[at] if at >= 0 else ()
    held = dict(of_input)
    for o in description.operators:
        for saved in SAVED_BYTES:
            held[saved] += found[o.name][saved]
        for saved, work, most in zip(SAVED_BYTES * 3, WORK_BYTES, needed.get(o.name, (0,) * 6), strict=True):
            found[o.name][work] = max(0, most - held[saved])
        found[o.name][_WAITING] = waiting.get(o.name, 0)
    return found, of_input["saved_bytes_per_sample"]


def _low_copy(model: nn.Module, dtypes: Mapping[str, tuple[torch.dtype | None, Any]]) -> nn.Module:
    """A copy whose parameters have no data. Buffers are copied, since the forward may depend on their
    values."""
    replaced: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        dtype = dtypes.get(name, (None, None))[0] or parameter.dtype
        empty = torch.empty_like(parameter, dtype=dtype, device="meta")
        replaced[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, replaced)
