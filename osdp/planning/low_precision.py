"""Activations that a model saves when it computes in a lower precision than its parameters have."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from osdp.base.cast_floats import cast_floats
from osdp.description.describe import describe
from osdp.description.model_description import ModelDescription
from osdp.errors import DescribeError
from osdp.plan.mixed_precision import named_precision, parameter_dtypes


def with_low_activations(
    description: ModelDescription,
    model: nn.Module,
    sample: tuple[Any, ...] | Mapping[str, Any],
    precision: str,
) -> ModelDescription:
    """`description`, made from `model` and `sample`, with the activations that are saved under `precision`.

    They are determined on a copy of the model whose parameters have the lower dtype and no data. If such a
    copy cannot be made or run (the forward depends on values), the description is returned unchanged, which
    is an upper bound.
    """
    policy = named_precision(precision)
    if policy is None:
        return description
    try:
        assert policy.param_dtype is not None
        low_model = _low_copy(model, parameter_dtypes(model, policy))
        low = _described(low_model, cast_floats(sample, policy.param_dtype))
    except (DescribeError, TypeError, RuntimeError):
        return description
    saved = {o.name: o for o in low.operators}
    inputs = {b.name: b.input_bytes_per_sample for b in low.blocks}
    if [o.name for o in description.operators] != list(saved):
        return description
    return dataclasses.replace(
        description,
        operators=tuple(
            dataclasses.replace(
                o,
                saved_bytes_per_sample=saved[o.name].saved_bytes_per_sample,
                saved_bytes_fixed=saved[o.name].saved_bytes_fixed,
                work_bytes_per_sample=saved[o.name].work_bytes_per_sample,
                work_bytes_fixed=saved[o.name].work_bytes_fixed,
            )
            for o in description.operators
        ),
        blocks=tuple(
            dataclasses.replace(b, input_bytes_per_sample=inputs.get(b.name, b.input_bytes_per_sample))
            for b in description.blocks
        ),
    )


def _described(model: nn.Module, sample: Any) -> ModelDescription:
    if isinstance(sample, Mapping):
        return describe(model, **sample)
    return describe(model, *(sample if isinstance(sample, tuple) else (sample,)))


def _low_copy(model: nn.Module, dtypes: Mapping[str, tuple[torch.dtype | None, Any]]) -> nn.Module:
    """A copy whose parameters have no data. Buffers are copied, since the forward may depend on their
    values."""
    replaced: dict[int, Any] = {}
    for name, parameter in model.named_parameters():
        dtype = dtypes.get(name, (None, None))[0] or parameter.dtype
        empty = torch.empty_like(parameter, dtype=dtype, device="meta")
        replaced[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, replaced)
