"""The sharded models that a module has to do with."""

from __future__ import annotations

from torch import nn

from osdp.base.sharded_models import HANDLES
from osdp.errors import ShardingError
from osdp.sharding.forward_methods import part_of
from osdp.sharding.sharded_model import Sharded, runtime_of


def sharded_in(module: nn.Module) -> list[tuple[nn.Module, Sharded]]:
    """Those that are `module` or inside of it, a plain model with sharded parts, say; else the one around it; else none."""
    inside = [(m, runtime_of(m)) for m in module.modules() if m in HANDLES]
    if inside:
        return inside
    try:
        model, sharded, _ = part_of(getattr(module, "_osdp_wrapped", module))
    except ShardingError:
        return []
    return [(model, sharded)]


def first_sharded_in(module: nn.Module) -> Sharded:
    """One of them, for what they have in common: ranks. Raises ShardingError where there is none."""
    found = sharded_in(module)
    if not found:
        raise ShardingError(f"{type(module).__name__} is not part of a sharded model, and none is in it")
    return found[0][1]
