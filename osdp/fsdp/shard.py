"""The steps of every wrapper: make a plan from its options, take over parts that are sharded already, and
mark the module.

A copy of a module gets what was noted of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from osdp.base.kept_state import outside_inference_mode
from osdp.base.modules import HANDLES
from osdp.fsdp.deferred import defer, taking_up, tied_to_sharded
from osdp.fsdp.first_forward import copy_wait, stop_waiting, wait_for_inputs
from osdp.fsdp.ignored import ignoring
from osdp.fsdp.marks import MARKS, marked_plan, marks_in, obey, refuse_planned
from osdp.fsdp.options import Options
from osdp.fsdp.searched_plan import searched_plan
from osdp.fsdp.state_dict_types import carry_over
from osdp.sharding.copies import Memo, also_copy
from osdp.sharding.hybrid_mesh import model_ranks
from osdp.sharding.materialize import keep_ties
from osdp.sharding.resharding import Resharding
from osdp.sharding.separate_parts import SeparateParts
from osdp.sharding.sharded_model import runtime_of, sharded_of
from osdp.sharding.state_dict_form import StateDictForm
from osdp.sharding.tensor_parallel import local_parts


@outside_inference_mode
def shard(module: nn.Module, options: Options, form: StateDictForm) -> None:
    """Shard `module` in place. Collective. `form`: of its state dicts. A module without parameters is only
    marked, and so is one that is tied to another that is sharded already (osdp/fsdp/deferred.py).

    Raises the errors of `osdp.fully_shard` and `osdp.search`.
    """
    keep_ties(module)
    inside = set(module.modules())
    with separate_parts(module, options) as separate:
        refuse_planned(module)
        told = [options, *marks_in(module)]
        with ignoring(module, told):
            tied = None if options.plan is not None else tied_to_sharded(module, inside)
        if tied is not None:
            defer(module, options, tied)
            return
        with taking_up(module, options), ignoring(module, told), local_parts(module):
            _shard(module, options, form, separate)


def separate_parts(module: nn.Module, options: Options) -> SeparateParts:
    """The parts of `module` that are sharded over other ranks than `options` say. Collective where
    `osdp.sharding.hybrid_mesh.model_ranks` is, if a part is sharded."""
    if not any(m in HANDLES for m in module.modules()):
        return SeparateParts(module, None)
    return SeparateParts(module, model_ranks(options.process_group, options.device_mesh)[0])


def _shard(module: nn.Module, options: Options, form: StateDictForm, separate: SeparateParts) -> None:
    if next(module.parameters(), None) is None:
        MARKS[module] = options
        return
    waited = [(m, told) for m in module.modules() if (told := stop_waiting(m)) is not None]
    try:
        _shard_parts(module, options, separate)
    except BaseException:
        for part, told in waited:
            wait_for_inputs(part, told)
        raise
    MARKS[module] = options
    runtime_of(module).form = form


def _shard_parts(module: nn.Module, options: Options, separate: SeparateParts) -> None:
    with Resharding(module) as resharding:
        with separate.readable():
            if options.plan is not None:
                plan = options.plan
            elif options.memory is not None and options.sample is not None:
                plan = searched_plan(module, options, separate)
            else:
                plan = marked_plan(module, options)
        obey(
            module,
            plan,
            options,
            resharding,
            param_init_fn=options.param_init_fn,
            initialise=options.initialise,
        )


def copy_notes(module: nn.Module, copied: nn.Module, memo: Memo) -> None:
    if module in MARKS:
        MARKS[copied] = _of_copy(MARKS[module], memo)
    source, made = sharded_of(module), sharded_of(copied)
    if source is not None and made is not None:
        carry_over(source, made)
    copy_wait(module, copied, lambda options: _of_copy(options, memo))


def _of_copy(options: Options, memo: Memo) -> Options:
    """The options, with the copies of the modules and parameters that they name."""

    def theirs(named: Any) -> Any:
        return None if named is None else tuple(memo.get(id(each), each) for each in named)

    return dataclasses.replace(
        options,
        ignored_modules=theirs(options.ignored_modules),
        ignored_states=theirs(options.ignored_states),
    )


also_copy(copy_notes)
