"""`model.double()`, `.bfloat16()` or `.to(dtype)` after sharding and before the first forward, as FSDP2 takes it.

A runtime's memory, its messages and its hooks on gradients are for one dtype of each parameter. So the model is sharded
anew, from the rows as they are now: nothing is sent, and parameters stay the same objects. After the first forward an
optimizer has states of the old dtype, and the next forward refuses the new one.
"""

from __future__ import annotations

from torch import nn

from osdp.base.tensor_trees import dtype_name
from osdp.fsdp.first_forward import options_of_wait, wait_for_inputs
from osdp.fsdp.shard import shard
from osdp.fsdp.state_dict_types import carry_over
from osdp.sharding.sharded_model import Sharded, runtime_of, sharded_of


def take_new_dtypes(model: nn.Module) -> None:
    """Collective if `model` is a sharded one that has not been called yet, and its parameters have other dtypes than when
    they were sharded."""
    sharded = sharded_of(model)
    options = options_of_wait(model)
    if sharded is None or options is None or not _changed(sharded):
        return
    shard(model, options, sharded.form)
    wait_for_inputs(model, options)
    carry_over(sharded, runtime_of(model))


def _changed(sharded: Sharded) -> bool:
    planned = {p.name: p.dtype for p in sharded.plan.description.parameters}
    now = zip(sharded.planned, sharded.tree.known, strict=False)
    return any(planned.get(name, kind) != kind for name, p in now if (kind := dtype_name(p)))
