"""Finds the sharded models that belong to a module."""

from __future__ import annotations

from torch import nn

from osdp.base.compiled_modules import unwrapped
from osdp.base.sharded_models import HANDLES
from osdp.errors import ShardingError
from osdp.sharding.forward_methods import part_of
from osdp.sharding.sharded_model import Sharded, runtime_of


def sharded_in(module: nn.Module) -> list[tuple[nn.Module, Sharded]]:
    """The sharded model that is `module` or contains it, if there is one, and those inside it (a plain model may have
    sharded parts)."""
    inside = [(m, runtime_of(m)) for m in module.modules() if m in HANDLES]
    if inside and inside[0][0] is unwrapped(module):
        return inside
    try:
        model, sharded, _ = part_of(unwrapped(module))
    except ShardingError:
        return inside
    return [(model, sharded), *inside]


def first_sharded_in(module: nn.Module) -> Sharded:
    """The first of them, for properties that they share, such as the ranks. Raises ShardingError if there is
    none."""
    found = sharded_in(module)
    if not found:
        raise ShardingError(f"{type(module).__name__} is not part of a sharded model and contains none")
    return found[0][1]
