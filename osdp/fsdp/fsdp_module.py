"""FSDPModule: the methods that FSDP2 adds to a module. Those that tune mechanisms OSDP does not have do nothing.

Note [torch's FSDPModule]
torchtitan, torch's pipelining and other libraries look for instances of torch's FSDPModule, and for classes named
FSDP<Name>. Where they do not find them, they take gradients to be means that they still have to scale, or reduce after
every micro-batch: another number, without an error. So the class of a module that OSDP has sharded has torch's among its
bases, and every public method of torch's is defined here (a test compares the two), since torch's own need the state of
FSDP2. torch's is the last base: the original class stands at the place in the order where FSDP2 has it
(`_orig_cls_mro_index`), which torch.compile reads when it saves guards, and its private methods come after nn.Module's.
What torch's pipelining reads of FSDP2's state is in osdp/fsdp/pipelining.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, Self

from torch import nn
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import UnshardHandle as TorchUnshardHandle

from osdp.base.made_classes import reduced
from osdp.base.warned import warn
from osdp.errors import InvalidProblemError, ShardingError
from osdp.fsdp.new_dtypes import take_new_dtypes
from osdp.fsdp.pipelining import from_schedule, refuse_split_backward, state_of, staying
from osdp.sharding.dtensor_parameters import as_rows
from osdp.sharding.forward_methods import part_of, register_forward_method
from osdp.sharding.nested_models import with_parts
from osdp.sharding.parameter_settings import (
    GATHERS_IN_BACKWARD,
    STAYS_AFTER_BACKWARD,
    STAYS_AFTER_FORWARD,
    STAYS_IF_KEPT,
    SYNC,
    change_setting,
    places_of,
    set_divide_factor,
)
from osdp.sharding.sharded_model import sharded_of


def _accepted(self: nn.Module, *_: Any, **__: Any) -> None:
    """Accepted, without effect: the plan decides what this would tune."""


def refused_method(name: str, instead: str) -> Callable[..., None]:
    def refused(self: nn.Module, *_: Any, **__: Any) -> None:
        raise ShardingError(f"{name} is not supported: {instead}")

    refused.__name__ = name
    refused.__doc__ = f"Not supported, raises ShardingError: {instead}."
    return refused


_IN_SLICES = (
    "parameter {!r} is computed in slices, each gathered by its product alone: after unshard() it shows this rank's part "
    "still. To read it use osdp.summon_full_params(model)"
)


class UnshardHandle(TorchUnshardHandle):
    """The result of `unshard`; `wait` returns when the gather has finished, and parameters show their full values."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters

    def wait(self) -> None:
        for sharded, indices in places_of(self._parameters):
            sharded.runtime.await_unsharded(indices)
        self._parameters = []


class FSDPModule(nn.Module):
    """Base class of modules that `osdp.fully_shard(module)` has sharded, which are instances of torch's FSDPModule,
    too: Note [torch's FSDPModule]. docs/drop-in.md describes each method.

    >>> model.set_requires_gradient_sync(False)  # accumulate without communication
    """

    _osdp_fsdp_module = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """A new instance of the class (a slice of a Sequential) is not sharded: it is of the original class."""
        kind = cls.__mro__[cls.__mro__.index(FSDPModule) + 1]
        made: Any = kind.__new__(kind, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: Any) -> None:
        """torch's register_fsdp_forward_method puts a method that asks for FSDP2's state: ours is registered instead."""
        if type(value) is MethodType and value.__func__.__globals__ is TorchFSDPModule.unshard.__globals__:
            return register_forward_method(self, name)
        return super().__setattr__(name, value)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """The original class's; what stays gathered would be stale, and other dtypes need another runtime."""
        self.reshard()
        with as_rows():
            super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        take_new_dtypes(self)
        return self

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather the module's unit (not those of sharded parts inside) ahead of its next use, collectively. Its
        parameters show their full values, to be read, until the next call or backward, an optimizer's step, a state
        dict or `reshard`; it stays gathered until `reshard`, or until the end of a forward or backward after which
        it is resharded. For `async_op` the same begins with `wait` of the handle that is returned. Notes [Units that
        stay gathered] and [What unshard() shows].

        Raises ShardingError within `osdp.summon_full_params`, and for a pipeline schedule that splits backward. What
        is written to the full values would be lost: whatever ends their time raises ShardingError that names it.
        """
        caller = sys._getframe(1)
        refuse_split_backward(caller)
        parameters = parameters_of_unit(self)
        if from_schedule(caller):
            parameters = staying(parameters, sharded_of(self))
        for sharded, indices in places_of(parameters):
            sharded.runtime.unshard(indices, not async_op)
            if not (async_op or sharded.runtime.in_pass):
                for name in sorted(sharded.name_of(i) for i in indices if sharded.is_split(i)):
                    warn(_IN_SLICES.format(name))  # why else would a script wait for it?
        return UnshardHandle(parameters) if async_op else None

    def reshard(self) -> None:
        """Free what is gathered of the module's unit, unless a running call or backward uses it. Raises ShardingError,
        after that, if a parameter was written to while `unshard` showed it."""
        for sharded, indices in places_of(parameters_of_unit(self)):
            sharded.runtime.reshard(indices)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """With False, the units stay gathered after a forward, also over several (micro-batches, an evaluation), until
        a backward or an optimizer's step; with True they do not, whatever their mode. Raises InvalidProblemError for
        anything but a bool, as torch a ValueError."""
        if not isinstance(reshard_after_forward, bool):
            raise InvalidProblemError(f"reshard_after_forward must be a bool, got {reshard_after_forward!r}")
        change_setting(self._of(recurse), STAYS_AFTER_FORWARD, not reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """With False, the units stay gathered after a backward for the next micro-batch, until an optimizer's step. A
        stage of a pipeline keeps nothing after the last one of a step, and before that with a plan of its own what the plan
        keeps: Note [Micro-batches of a stage]."""
        parameters = self._of(recurse)
        if not reshard_after_backward and state_of(self).in_stage:
            parameters = staying(parameters, sharded_of(self))
            reshard_after_backward = state_of(self).last_backward
        change_setting(parameters, STAYS_AFTER_BACKWARD, not reshard_after_backward)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """With False, backward does not gather the module's unit: for parameters that no backward reads (of an
        embedding). A backward that does read one raises an error that names it."""
        change_setting(parameters_of_unit(self), GATHERS_IN_BACKWARD, unshard_in_backward)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """With False, backward keeps this rank's own gradients of the module's parameters, as in `osdp.no_sync`; the
        first backward after True reduces their sum. `recurse`: those of sharded parts inside too. In a stage of a
        pipeline the last backward of a step reduces nevertheless: Note [Micro-batches of a stage]."""
        parameters = self._of(recurse)
        if not requires_gradient_sync and state_of(self).in_stage:
            parameters = staying(parameters, sharded_of(self))
            requires_gradient_sync = state_of(self).last_backward
        change_setting(parameters, SYNC, bool(requires_gradient_sync))

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Every backward waits for its reductions: `.grad` is final at its end. A stage of a pipeline counts them here."""
        state = state_of(self)  # which torch looks for next
        if not is_last_backward:
            state.begin_backward()

    def _of(self, recurse: bool) -> list[nn.Parameter]:
        return list(self.parameters()) if recurse else parameters_of_unit(self)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Gradients of the parameters that belong to this module's unit (not to a sharded part inside) are the sum over
        the ranks divided by `factor`, instead of their mean. Alike on all ranks; also within accumulation.

        Raises InvalidProblemError unless `factor` is a positive number.
        """
        set_divide_factor(parameters_of_unit(self), factor)

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """FSDP2's older name of `set_gradient_divide_factor`."""
        self.set_gradient_divide_factor(factor)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Accepted without effect where HYBRID_SHARD is not used; with it, False raises ShardingError."""
        _, sharded, _ = part_of(self)
        if not requires_all_reduce and sharded.hybrid_names:
            raise ShardingError(
                "set_requires_all_reduce(False) is not supported: accumulate with "
                "set_requires_gradient_sync(False)"
            )

    # These tune when collectives run and how; numbers do not depend on them, nor does what stays in memory between passes.
    reset_iter_state = _accepted
    set_force_sum_reduction_for_comms = _accepted
    set_modules_to_backward_prefetch = _accepted
    set_modules_to_forward_prefetch = _accepted
    set_post_optim_event = _accepted
    set_reduce_scatter_max_input_buffers = _accepted
    set_separate_reduce_scatter_group = _accepted
    set_symm_mem_for_comm = _accepted

    # These would change results or memory in ways that are not supported; and what to do instead.
    set_all_reduce_hook = refused_method(
        "set_all_reduce_hook", "change gradients after backward, or in register_post_accumulate_grad_hook"
    )
    set_allocate_memory_from_process_group_for_comm = refused_method(
        "set_allocate_memory_from_process_group_for_comm", "pass it to osdp.fully_shard(model, plan)"
    )
    set_custom_all_gather = refused_method("set_custom_all_gather", "OSDP uses its own collectives")
    set_custom_reduce_scatter = refused_method("set_custom_reduce_scatter", "OSDP uses its own collectives")
    set_reduce_scatter_unused_params = refused_method(
        "set_reduce_scatter_unused_params", "a parameter that no rank used gets no gradient"
    )


def parameters_of_unit(module: nn.Module) -> list[nn.Parameter]:
    """Those of the module's own unit: not of sharded parts inside."""
    parts = [part for part in module.modules() if part is not module and isinstance(part, FSDPModule)]
    inside = {id(p) for part in parts for p in part.parameters()}
    return [p for p in module.parameters() if id(p) not in inside]


def as_fsdp_module(module: nn.Module) -> None:
    """Give `module` the methods: its class becomes a subclass of FSDPModule, its own class and torch's FSDPModule."""
    kind = type(module)
    if not issubclass(kind, FSDPModule):
        module.__class__ = _both(kind)
    state_of(module)


def _both(kind: type[nn.Module]) -> type[nn.Module]:
    """One for all modules of a class: Dynamo compiles a function for each class that it is called with."""
    name = f"FSDP{kind.__name__}"
    for made in kind.__subclasses__():
        if made.__bases__ == (FSDPModule, kind, TorchFSDPModule) and made.__name__ == name:
            return made

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:
        return reduced(self, protocol, kind, _made)

    names = {"__module__": kind.__module__, "__reduce_ex__": __reduce_ex__}
    return type(name, (FSDPModule, kind, TorchFSDPModule), names)


def _made(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(_both(kind))


def as_stage(stage: Any) -> None:
    """A schedule of torch's begins a step of `stage`, whose module OSDP has sharded: what torch asks of FSDPModules is asked
    of it."""
    module = stage.submod
    as_fsdp_module(module)
    if not state_of(module).begin_step(stage):
        return
    for _, sharded in with_parts(module) if stage.num_stages > 1 else ():
        sharded.lane.in_stage(stage.stage_index)  # errors name it
    change_setting(module.parameters(), STAYS_IF_KEPT, True)  # over the forwards of all micro-batches
