"""summon_full_params with the arguments of FSDP1 and of FairScale."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from osdp.errors import InvalidProblemError
from osdp.fsdp.sharded_in import sharded_in
from osdp.sharding import step_scopes


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
