"""Functions for training scripts: no_sync, clip_grad_norm_, summon_full_params."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from osdp.base.compiled_modules import unwrapped
from osdp.sharding.sharded_model import runtime_of


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Context in which backward accumulates each rank's own full gradients without communication; the first
    backward after it reduces their sum.

    It needs memory for a full gradient of every parameter. Accumulation without no_sync keeps only shards,
    and reduces gradients in every micro-batch.
    """
    runtime = runtime_of(model).runtime
    before, runtime.sync = runtime.sync, False
    try:
        yield
    finally:
        runtime_of(model).runtime.sync = before  # a new runtime, if the plan was made within the context


def clip_grad_norm_(
    model: nn.Module, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`; return the norm before
    scaling.

    The result is the same on every rank; it takes one all-reduce of two numbers.
    torch.nn.utils.clip_grad_norm_ gives the same result.
    """
    sharded = runtime_of(model)
    if sharded.runtime.tree_changed:  # parameters removed since the last forward do not count
        sharded.tree.look_between_steps(unwrapped(model))
    return sharded.runtime.clip_grad_norm(float(max_norm), float(norm_type), error_if_nonfinite)


@contextmanager
def summon_full_params(model: nn.Module, with_grads: bool = False, writeback: bool = True) -> Iterator[None]:
    """Context in which parameters (with `with_grads` also gradients) are full on every rank. Collective; it
    needs memory for the full model.

    With `writeback`, each rank keeps the changes to its own rows, so make the same changes on all ranks.
    """
    runtime = runtime_of(model).runtime
    runtime.summon(with_grads)
    try:
        yield
    finally:
        runtime.unsummon(writeback)
