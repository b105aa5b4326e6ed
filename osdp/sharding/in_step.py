"""Tells other libraries that every rank has to call a sharded model as often as the others.

Note [Calls in step]
A call gathers parameters, so a rank that calls a layer more often than another waits for it. transformers' `generate` ends
on each rank with its own last sequence; it goes on calling until all ranks are done if the module's attribute
`_is_fsdp_managed_module` is true. torch's fully_shard sets that on all modules, for the compiler. Here it is an answer
that is computed: a model whose parameters need no gathering (all NO_SHARD, or full inside `summon_full_params`) may be
called by one rank alone, and the compiler, which would trace a module of torch's FSDP in another way, is told no.
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch import nn
from torch._guards import TracingContext

from osdp.plan.plan_fields import parameters_with
from osdp.sharding.nested_models import with_parts
from osdp.sharding.sharded_model import Sharded, sharded_of

MARK = "_is_fsdp_managed_module"


class CalledInStep:
    """The value of the attribute: true while calls of the model's modules gather."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)

    def __bool__(self) -> bool:
        model = self._model()
        if model is None or sharded_of(model) is None or TracingContext.try_get() is not None:
            return False
        return any(_gathers(sharded) for _, sharded in with_parts(model))

    def __deepcopy__(self, memo: object) -> bool:
        return False  # a copy is marked when it is sharded

    def __reduce__(self) -> tuple[Any, ...]:
        return (bool, ())


def _gathers(sharded: Sharded) -> bool:
    several = sharded.group.size() > 1
    return several and not sharded.runtime.summoned and bool(parameters_with(sharded.plan, "sharded"))


def mark_modules(model: nn.Module) -> None:
    mark = CalledInStep(model)
    for module in model.modules():
        vars(module)[MARK] = mark
