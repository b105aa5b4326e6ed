"""Drawing values anew after fully_shard, where a rank holds rows: refused, unless inside summon_full_params.

Note [Initialising shards]
torch.nn.init takes fan-in and fan-out from the shape, and draws from this rank's generator. Of some rows, xavier's scale
is another, orthogonal rows are orthogonal to this rank's only, and ranks of equal seeds draw equal rows. So its functions
refuse a tensor in whose memory this rank's part of a parameter lies (`.data` and views are in it too); `reset_parameters`
of torch's modules call them. zeros_, ones_ and constant_ are right for any part. What every rank holds in full is drawn,
and compared over the ranks at the next forward, which tells where seeds differ.
  Methods of the tensor itself, `p.data.normal_()`, are told within `model.apply(...)` and within methods that name a
parameter (osdp/sharding/forward_methods.py). In a function of the script nothing tells them from what an optimizer does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import init

from osdp.errors import ShardingError
from osdp.sharding.sharded_model import sharded_models

_PUBLIC = (
    "uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_",
    "orthogonal_", "sparse_", "eye_", "dirac_",
)  # fmt: skip
# They are what the public ones call: a script may have imported those before. Names of torch's own; others are passed by.
_WITHIN = ("_no_grad_uniform_", "_no_grad_normal_", "_no_grad_trunc_normal_", "_calculate_correct_fan")


@functools.cache
def watch_initialising() -> None:
    """Once per process: has torch.nn.init ask."""
    for name in (*_PUBLIC, *_WITHIN):
        if callable(function := getattr(init, name, None)):
            setattr(init, name, _asking(name, function))


def _asking(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def asking(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and not torch.compiler.is_compiling():
            refuse_part(tensor, f"torch.nn.init.{name}")
        return function(tensor, *args, **kwargs)

    return asking


def refuse_part(tensor: Tensor, what: str) -> None:
    """ShardingError where `tensor` is this rank's part of a parameter; what is whole is compared at the next forward."""
    for _, sharded in sharded_models():
        runtime = sharded.runtime
        if runtime.in_pass or runtime.summoned or (found := runtime.owner_of(tensor)) is None:
            continue
        name, whole = found
        if whole:
            runtime.suspect_replicas()
            continue
        raise ShardingError(
            f"{what} would draw parameter '{name}' anew from this rank's part of it, {list(tensor.shape)}: initialise it "
            "before fully_shard, or inside osdp.summon_full_params(model) with the same seed on all ranks; models on the "
            "meta device take a param_init_fn"
        )
