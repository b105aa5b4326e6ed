"""Functions for training scripts: no_sync, clip_grad_norm_, summon_full_params."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch import distributed as dist

from osdp.errors import InvalidProblemError
from osdp.sharding.nested_models import counted_with, with_parts
from osdp.sharding.norm_over_stages import clip_over_stages
from osdp.sharding.own_values import in_modules, whole_over_data
from osdp.sharding.sharded_model import Sharded, runtime_of
from osdp.sharding.tensor_parallel_norm import clip_over_meshes, clip_over_tensor_parallel


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Context in which backward accumulates each rank's own full gradients without communication; the first
    backward after it reduces their sum. Includes the model's parts that are sharded over other ranks.

    It needs memory for a full gradient of every parameter. Accumulation without no_sync keeps only shards,
    and reduces gradients in every micro-batch.

    Raises ShardingError if `model` is not sharded.

    >>> with osdp.no_sync(model):
    ...     loss(model(first)).backward()  # no communication
    >>> loss(model(second)).backward()  # reduces the sum of both
    >>> optimizer.step()
    """
    before = [(each, sharded.runtime.sync) for each, sharded in with_parts(model)]
    for _, sharded in with_parts(model):
        _set_sync(sharded, False)
    try:
        yield
    finally:
        for each, sync in before:
            _set_sync(runtime_of(each), sync)  # a new runtime, if the plan was made within the context


def _set_sync(sharded: Sharded, sync: bool) -> None:
    sharded.runtime.sync = sync
    for copied in list(sharded.copied_in_no_sync):
        _set_sync(runtime_of(copied), sync)
    if sync:
        sharded.copied_in_no_sync.clear()


def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    *,
    tp_group: dist.ProcessGroup | None = None,
    tp_parameters: str | Sequence[str] | None = None,
) -> Tensor:
    """Scale all gradients so that their norm over all ranks is at most `max_norm`; return the norm before
    scaling.

    The result is the same on every rank; it takes one all-reduce of two numbers.
    torch.nn.utils.clip_grad_norm_ gives the same result. Returns a tensor of shape [].

    A part that is sharded over other ranks (an expert) counts once for each group of ranks that has one, as in one
    process that holds them all.

    `tp_group`: the ranks that hold the other slices of this rank's layers, where tensor parallelism is written by hand (on
    plain parameters, as Megatron's): without it the norm would differ between them. `tp_parameters`: patterns of the
    parameters, or modules, that are slices over it; by default those with a true attribute `tensor_model_parallel`. The
    others are alike on its ranks and count once. Takes one more collective, over that group. Parameters that torch's
    parallelize_module has divided know their mesh: nothing need be said.

    Raises InvalidProblemError for a `tp_group` with neither, or with ranks that the model is sharded over, and for a pattern
    that matches nothing.
    Raises ShardingError if `model` is not sharded, if a forward or backward is running, or if the part has ranks that the
    model lacks; with `error_if_nonfinite`, GradientError on every rank if the norm is infinite or NaN.

    >>> loss.backward()
    >>> norm = osdp.clip_grad_norm_(model, 1.0)
    >>> optimizer.step()
    """
    for each, sharded in with_parts(model):
        if sharded.runtime.tree_changed or sharded.tree.has_lost(each):  # what was removed does not count
            sharded.tree.look_between_steps(each)
    if tp_group is not None:
        return clip_over_tensor_parallel(
            model, float(max_norm), float(norm_type), error_if_nonfinite, tp_group, tp_parameters
        )
    if tp_parameters is not None:
        raise InvalidProblemError("tp_parameters says what is cut over tp_group: pass that group too")
    if runtime_of(model).stages is not None:
        norm = clip_over_stages(list(model.parameters()), max_norm, float(norm_type), error_if_nonfinite)
        assert norm is not None
        return norm
    if any(sharded.tensor_parallel for _, sharded in with_parts(model)):
        return clip_over_meshes(model, float(max_norm), float(norm_type), error_if_nonfinite)
    return runtime_of(model).runtime.clip_grad_norm(
        float(max_norm), float(norm_type), error_if_nonfinite, counted_with(model)
    )


@contextmanager
def summon_full_params(model: nn.Module, with_grads: bool = False, writeback: bool = True) -> Iterator[None]:
    """Context in which parameters (with `with_grads` also gradients) are full on every rank. Collective; it
    needs memory for the full model.

    With `writeback`, each rank keeps the changes to its own rows, so make the same changes on all ranks.
    A forward without gradients (`generate`, an evaluation) computes with the full values that are there, without
    communication, so any rank may run it; one with gradients is a ShardingError.

    Parameters that torch's parallelize_module has divided are DTensors over its mesh meanwhile (`full_tensor()`).

    Raises ShardingError if `model` is not sharded, is in a forward or backward, or is summoned already.

    >>> with osdp.summon_full_params(model, writeback=False):
    ...     print(model.head.weight.norm())
    """
    with ExitStack() as stack:
        for each, sharded in with_parts(model):
            stack.enter_context(summoned(each, sharded, with_grads, writeback))
        yield


@contextmanager
def summoned(model: nn.Module, sharded: Sharded, with_grads: bool, writeback: bool) -> Iterator[None]:
    """The same for one sharded model, without its parts."""
    sharded.end_interrupted()
    runtime = sharded.runtime
    runtime.summon(with_grads)
    try:
        with whole_over_data(in_modules(model, sharded)):
            yield
    finally:
        runtime.unsummon(writeback)
