"""Errors that torch raises as RuntimeErrors of its own, in classes of osdp.errors.

Note [Errors of backward]
A parameter's memory is read, and gradients' shapes are compared, deep inside autograd's engine. What is thrown there
becomes a RuntimeError before any hook of ours is asked; the only Python that sees it is torch.autograd's call of the
engine. That call goes through a function here once something was sharded. Of another torch, which has no such function,
the errors stay RuntimeErrors with the same text. Errors in forward: see CallHook in csrc/bindings/runtime.cpp.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
import torch.autograd

from osdp.errors import ShardingError
from osdp.sharding.sharded_model import sharded_models

_UNGATHERED = re.compile(r"OSDP: parameter '.*' was read while it is not gathered")
# A gradient of this rank's part arrives where gradients of the full parameter are expected.
_SHAPES = re.compile(
    r"returned an invalid gradient at index \d+ - got (\[[\d, ]*\]) but expected shape compatible with (\[[\d, ]*\])"
)


def typed(error: RuntimeError) -> ShardingError | None:
    """The error to raise instead; None where it is not about a sharded parameter."""
    text = str(error)
    if _UNGATHERED.match(text):
        message = text
    elif shapes := _SHAPES.search(text):
        names = _parameters(*shapes.groups())
        if not names:
            return None
        message = (
            f"OSDP: a gradient {shapes[1]} came for a parameter {shapes[2]}: {' or '.join(map(repr, names))} was used in "
            "the loss outside of forward (a penalty on the weights?), where it is this rank's part. Use the optimizer's "
            "weight_decay; or compute the term in forward, or in a method of the model that "
            "osdp.register_forward_method(model, name) has gather what it reads; or choose NO_SHARD in the plan"
        )
    else:
        return None
    instead = ShardingError(message)
    instead.__traceback__ = error.__traceback__
    return instead


def _parameters(part: str, whole: str) -> list[str]:
    """Names of parameters of which this rank holds a part of this shape."""
    found = [
        name
        for model, sharded in sharded_models()
        for name, parameter in model.named_parameters()
        if name in sharded.index
        and (str(list(parameter.shape)), str(list(sharded.full_shape(name)))) == (part, whole)
    ]
    return list(dict.fromkeys(found))


@functools.cache
def install_typed_errors() -> None:
    """Once per process."""
    run = getattr(torch.autograd, "_engine_run_backward", None)
    if run is None:
        return

    @functools.wraps(run)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            instead = typed(error) if type(error) is RuntimeError else None
            if instead is None:
                raise
        raise instead

    setattr(torch.autograd, "_engine_run_backward", run_backward)  # noqa: B010 (not exported to mypy)
