"""Finds the sharded models that belong to a module; summon_full_params of all of them, with the arguments of FSDP1 and of
FairScale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from osdp.base.modules import HANDLES, unwrapped
from osdp.errors import InvalidProblemError, ShardingError
from osdp.sharding import step_scopes
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


@contextmanager
def summon_full_params(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
    volatile: bool = False,
) -> Iterator[None]:
    """Context in which parameters (with `with_grads` also gradients) of all sharded models in `module` are
    full on every rank. Collective.

    For a part of a model, and with `recurse=False`, the whole model is summoned; with `rank0_only` other
    ranks see full parameters too. `writeback=False` (FairScale: `volatile=True`) discards changes; it is
    required with `rank0_only`, since each rank writes back its own rows. `offload_to_cpu` is supported only
    for models whose parameters are in host memory.

    Raises InvalidProblemError for combinations that are not supported, ShardingError inside a forward or another summon.
    """
    keeps = writeback and not volatile
    if rank0_only and keeps:
        raise InvalidProblemError("rank0_only=True needs writeback=False: each rank writes back its own rows")
    models = sharded_in(module)
    if offload_to_cpu and any(sharded.device.type != "cpu" for _, sharded in models):
        raise InvalidProblemError(
            "offload_to_cpu=True is not supported where parameters are on an accelerator: take model.state_dict()"
        )
    with ExitStack() as stack:
        for each, sharded in models:
            stack.enter_context(step_scopes.summoned(each, sharded, with_grads, keeps))
        yield
