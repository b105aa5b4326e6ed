"""Refuses to initialise sharded parameters after fully_shard, except inside summon_full_params and after to_empty
(Note [Initialising after to_empty]).

Note [Initialising shards]
torch.nn.init computes fan-in and fan-out from the shape, and draws from this rank's generator. With only some
rows, xavier's scale would be wrong, rows would be orthogonal only to those of this rank, and ranks with equal
seeds would draw equal rows. So its functions refuse tensors that share memory with this rank's part of a
parameter (including `.data` and views); `reset_parameters` of torch's modules call them. zeros_, ones_ and
constant_ are correct for any part. After to_empty() they get the full parameter instead. Parameters that every
rank holds in full may be drawn, and are compared between ranks at the next forward, which raises if seeds differ.
  Methods of the tensor itself, `p.data.normal_()`, are detected within `model.apply(...)` and within methods
  that name a parameter (osdp/sharding/forward_methods.py). In a free function they cannot be distinguished
  from an optimizer's operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from osdp.base.tensor_parallel import local_part
from osdp.errors import ShardingError
from osdp.sharding.sharded_model import Sharded, sharded_models
from osdp.sharding.torch_patches.replaced import replace

# All that a kaiming_* which was imported before calls; then it draws by itself.
_KAIMING = "_calculate_correct_fan"
# The others call these by their names in the module, also where a script has imported them before. Some are private to
# torch; missing ones are skipped.
_FUNCTIONS = (
    "_no_grad_uniform_", "_no_grad_normal_", "_no_grad_trunc_normal_",  # of uniform_, normal_, trunc_normal_, xavier_*
    "_calculate_fan_in_and_fan_out",  # of xavier_*, kaiming_*
    "kaiming_uniform_", "kaiming_normal_", _KAIMING, "orthogonal_", "sparse_", "eye_", "dirac_",
)  # fmt: skip


def watch_initialising() -> None:
    """Replaces functions of torch.nn.init."""
    for name in _FUNCTIONS:
        if callable(getattr(init, name, None)):
            replace(init, name, functools.partial(_asking, name))


def _asking(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def asking(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not torch.compiler.is_compiling():
            held = local_part(tensor)
            if name != _KAIMING and (emptied := _emptied(held)) is not None:
                sharded, parameter = emptied
                assert sharded.in_full is not None
                result = sharded.in_full(function, "torch.nn.init")(parameter, *args, **kwargs)
                return tensor if result is parameter else result
            refuse_part(held, f"torch.nn.init.{name.removeprefix('_no_grad_')}")
        return function(tensor, *args, **kwargs)

    return asking


def _emptied(tensor: Tensor) -> tuple[Sharded, nn.Parameter] | None:
    """The parameter that `tensor` is, or is the `.data` of, if it has had no value since to_empty() and no method that
    initialises runs."""
    for _, sharded in sharded_models():
        if not sharded.emptied or sharded.initialising is not None or sharded.in_use:
            continue
        found = sharded.runtime.owner_of(tensor)
        if found is not None and found[0] in sharded.emptied:
            parameter = sharded.tree.known[found[0]]
            return (sharded, parameter) if tensor.shape == parameter.shape else None
    return None


def refuse_part(tensor: Tensor, what: str) -> None:
    """Raises ShardingError if `tensor` is this rank's part of a parameter; full parameters are compared at
    the next forward."""
    for _, sharded in sharded_models():
        runtime = sharded.runtime
        if sharded.in_use or (found := runtime.owner_of(tensor)) is None:
            continue
        index, whole = found
        if whole:
            runtime.suspect_replicas()
            continue
        if sharded.initialising is not None and sharded.initialising.shows(tensor, index):
            continue
        raise ShardingError(
            f"{what} would initialise parameter '{sharded.name_of(index)}' from the shape of this rank's part, "
            f"{list(tensor.shape)}: initialise it before fully_shard, or inside "
            "osdp.summon_full_params(model) with the same seed on all ranks; for models on the meta "
            "device pass param_init_fn, or, as with FSDP2, call "
            "model.to_empty(device=...) and then the modules' reset_parameters, or functions as torch.nn.init.<name>(...) "
            "(names that were imported before fully_shard are not seen in whole)"
        )
