"""The sharded models that a module has to do with."""

from __future__ import annotations

from torch import nn

from osdp.base.sharded_models import HANDLES
from osdp.errors import ShardingError
from osdp.sharding.forward_methods import part_of
from osdp.sharding.sharded_model import Sharded, runtime_of


def sharded_in(module: nn.Module) -> list[tuple[nn.Module, Sharded]]:
    """Those that are `module` or inside of it, a plain model with sharded parts, say; else the one around it.

    Raises ShardingError where there is none.
    """
    inside = [(m, runtime_of(m)) for m in module.modules() if m in HANDLES]
    if inside:
        return inside
    model, sharded, _ = part_of(getattr(module, "_osdp_wrapped", module))
    return [(model, sharded)]


def only_sharded_in(module: nn.Module, what: str) -> tuple[nn.Module, Sharded]:
    found = sharded_in(module)
    if len(found) > 1:
        raise ShardingError(
            f"{what} is of one sharded model, and there are {len(found)} in this {type(module).__name__}: wrap it as a "
            "whole, or call it for each of them"
        )
    return found[0]
