"""Parameters and modules that are excluded from sharding: each rank holds its own in full, and their
gradients are not averaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from osdp.base.modules import unwrapped
from osdp.errors import InvalidProblemError
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options
from osdp.sharding.separate_parts import set_aside
from osdp.sharding.sharded_model import in_sharded_models, sharded_of


@contextmanager
def ignoring(model: nn.Module, told: list[Options]) -> Iterator[None]:
    """Context in which the ignored parameters and buffers of `model` and of its wrapped parts are set aside. Afterwards
    the model's sharding does not touch them.

    Tensors that are not in this model are skipped. Raises InvalidProblemError for objects that are neither
    modules nor parameters, and for those that are sharded already.
    """
    of_modules = [m for options in told for m in ignored_modules(options)]
    held = (t for m in of_modules for t in (*m._parameters.values(), *m._buffers.values()))
    ignored = [*(t for t in held if t is not None), *(p for options in told for p in _parameters_of(options))]
    for other, name, _ in in_sharded_models(ignored):
        raise InvalidProblemError(
            f"'{name}' of a {type(other).__name__} is listed as ignored but is already sharded: either wrap it or ignore it"
        )
    tensors = {id(t) for t in ignored}
    any_here = False
    try:
        with set_aside(model, tensors) as any_here:
            yield
    finally:
        if any_here and (sharded := sharded_of(model)) is not None:
            sharded.tree.leave_alone(model, [p for p in model.parameters() if id(p) in tensors])


def ignored_modules(options: Options) -> set[nn.Module]:
    """The ignored modules and all modules inside them, except those that are wrapped (as in FSDP1)."""
    found: set[nn.Module] = set()
    for told in map(unwrapped, _modules_of(options)):
        inside = set(told.modules())
        found |= inside.difference(*(m.modules() for m in inside if m in MARKS and m is not told))
    return found


def _modules_of(options: Options) -> Iterator[nn.Module]:
    for each in options.ignored_modules or ():
        if not isinstance(each, nn.Module):
            raise InvalidProblemError(
                f"ignored_modules must contain only modules, got a {type(each).__name__}"
            )
        yield each
    yield from (each for each in options.ignored_states or () if isinstance(each, nn.Module))


def _parameters_of(options: Options) -> Iterator[Any]:
    for each in options.ignored_states or ():
        if isinstance(each, nn.Parameter):
            yield each
        elif not isinstance(each, nn.Module):
            raise InvalidProblemError(
                f"ignored_states must contain only parameters or modules, got a {type(each).__name__}"
            )
