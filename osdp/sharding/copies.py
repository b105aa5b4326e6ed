"""Deep copies of a sharded model: another sharded model, with the same plan over the same ranks.

Note [Copies of a sharded model]
torch's AveragedModel (EMA, SWA) is built on `copy.deepcopy(model)`, which looks for an attribute `__deepcopy__` of the
model: fully_shard sets one. What fully_shard has installed belongs to one runtime and cannot be copied. So it is taken
off while the modules are copied as usual, with a memo that replaces each sharded parameter by one of the full shape
without memory; the copy is then sharded by the plan, and takes this rank's rows and buffers. Tensors of the source are
only read. The copy shares nothing with it but the process groups. Like sharding it is collective: every rank copies.
  As with any copy by torch, gradients, hooks on tensors and attributes of parameters are not copied, and compiled calls
are not either.
  Hooks refuse to be copied (csrc/bindings/call_hook.cpp): so a part of a sharded model cannot be copied by itself, and
nothing can be pickled.
  A wrapper that passes attributes on (torch.compile's, PEFT's) would be asked for `__deepcopy__` and answer with the
wrapped model's, so the copy would lose the wrapper. copy.deepcopy's frame says what it copies.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from osdp import _C
from osdp.base.kept_state import outside_inference_mode
from osdp.errors import ShardingError
from osdp.ranks.rank_group import Together
from osdp.sharding.forward_methods import register_forward_method
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.nested_models import parts_of
from osdp.sharding.parameter_settings import copy_settings
from osdp.sharding.resharding import Resharding
from osdp.sharding.rollback import ModulesAsTheyWere
from osdp.sharding.separate_parts import SeparateParts, set_aside
from osdp.sharding.sharded_model import Sharded, runtime_of

Memo = dict[int, Any]  # copy.deepcopy's: id of an object -> its copy
Shard = Callable[[nn.Module, Sharded, "CopiedRows"], Sharded]

# What else a package knows of a model; called with each module of a sharded model, its copy, and the memo.
_also: list[Callable[[nn.Module, nn.Module, Memo], None]] = []


def also_copy(function: Callable[[nn.Module, nn.Module, Memo], None]) -> None:
    _also.append(function)


class DeepCopy:
    """The attribute `__deepcopy__` of a sharded model. `shard`: shards the copied modules."""

    def __init__(self, model: nn.Module, shard: Shard) -> None:
        self._model, self._shard = model, shard

    def __call__(self, memo: Memo) -> Any:
        caller = sys._getframe(1)
        asked = caller.f_locals.get("x") if caller.f_code is copy.deepcopy.__code__ else self._model
        if asked is not self._model and isinstance(asked, nn.Module):
            return _as_usual(asked, memo)
        return _copied(self._model, memo, self._shard)

    def __reduce__(self) -> Any:
        raise ShardingError(
            "a sharded model cannot be pickled: save it with osdp.save(model, optimizer, directory) or "
            "torch.save(model.state_dict())"
        )


class CopiedRows:
    """Gives a copy this rank's rows of the source; takes the place of a Placing."""

    def __init__(self, source: Sharded, memo: Memo) -> None:
        self._rows = {id(memo[id(p)]): p for p in _planned(source).values()}
        self._parameters: dict[str, nn.Parameter] = {}
        self._device = source.device

    def of(self, model: nn.Module) -> CopiedRows:
        self._parameters = dict(model.named_parameters())
        return self

    def stand_in(self, name: str) -> nn.Parameter:
        parameter = self._parameters[name]
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._device)
        return parameter

    def local(self, name: str, offload: bool) -> None:
        """The copy gets memory of its own."""

    def fill(self, runtime: _C.Runtime, collectives: _C.Collectives) -> None:
        with torch.no_grad():
            for parameter in self._parameters.values():
                parameter.copy_(self._rows[id(parameter)])

    def commit(self) -> None:
        pass


def _as_usual(module: nn.Module, memo: Memo) -> Any:
    """What copy.deepcopy makes of a module that has no `__deepcopy__`."""
    function, arguments, *rest = cast(tuple[Any, ...], module.__reduce_ex__(4))
    memo[id(module)] = made = function(*(copy.deepcopy(each, memo) for each in arguments))
    if rest and rest[0] is not None:
        made.__setstate__(copy.deepcopy(rest[0], memo))
    return made


@outside_inference_mode
def _copied(model: nn.Module, memo: Memo, shard: Shard) -> nn.Module:
    """Collective."""
    source = runtime_of(model)
    _refuse(model, source)
    source.tree.look_between_steps(model)
    for _, part, _ in parts_of(model):
        copy.deepcopy(part, memo)
    together = Together(source.group, "copying a sharded model")
    made = together.do("copying the model", lambda: _modules_of(model, source, memo))
    with (
        SeparateParts(made, source.group, of_same_ranks=True),
        set_aside(made, _apart(model, source, memo)),
        Resharding(made),
    ):
        new = shard(made, source, CopiedRows(source, memo))
    _keep_values(model, made, source)
    new.form, new.runtime.part = source.form, source.runtime.part
    if not source.runtime.sync:  # within no_sync, whose end is the copy's too
        new.runtime.sync = False
        source.copied_in_no_sync.add(made)
    new.tree.leave_alone(made, [memo[id(p)] for p in source.tree.left_alone])
    names = {id(p): name for name, p in made.named_parameters()}
    added = [memo[id(p)] for p in source.tree.known[len(source.planned) :] if id(p) in memo]
    if joined := {names[id(p)]: p for p in added if id(p) in names}:
        with ModuleChanges.on(made).also(made):
            new.tree.join(made, joined)
    new.index = {name: new.tree.index[i] for i, name in names.items() if i in new.tree.index}
    for owner, method, reads in source.registered:
        if (module := owner()) is not None and id(module) in memo:
            register_forward_method(memo[id(module)], method, reads)
    for module in model.modules():
        if id(module) in memo:
            for carry in _also:
                carry(module, memo[id(module)], memo)
    return made


def _planned(source: Sharded) -> dict[str, nn.Parameter]:
    """The parameters by their names in the plan."""
    return dict(zip(source.planned, source.tree.known, strict=False))


def _refuse(model: nn.Module, source: Sharded) -> None:
    kind = type(model).__name__
    if source.in_use:
        raise ShardingError(f"a {kind} is sharded and {source.in_use}: copy it outside of that")
    if source.unsettled:
        raise ShardingError(f"a {kind} cannot be copied yet: {source.unsettled}")


def _modules_of(model: nn.Module, source: Sharded, memo: Memo) -> nn.Module:
    """A copy of the modules, not sharded; its sharded parameters have their full shape but no memory."""
    for name, parameter in _planned(source).items():
        index = source.tree.index[id(parameter)]
        if source.index.get(name) != index:
            raise ShardingError(
                f"a {type(model).__name__} cannot be copied: {name!r} was renamed or removed after fully_shard, so its "
                "plan does not fit it any more. Copy it before that"
            )
        shape = source.runtime.full_shape(index)
        empty = torch.zeros((), dtype=parameter.dtype, device=source.device).expand(shape)
        # A list around the model may have been copied before it, with these parameters in it.
        made = memo.setdefault(id(parameter), type(parameter)(empty, requires_grad=parameter.requires_grad))
        made.data, made.grad = empty, None
        copy_settings(parameter, made)
    kept = ModulesAsTheyWere(model)
    try:
        ModuleChanges.on(model).take_off()
        copied = copy.deepcopy(model, memo)
    finally:
        kept.put_back()
    found = dict(copied.named_parameters())
    for name, parameter in model.named_parameters():
        if found.get(name) is not memo.get(id(parameter), found.get(name)) or name not in found:
            raise ShardingError(
                f"a {type(model).__name__} cannot be copied: {name!r} was made anew by a __deepcopy__ of its modules, "
                "instead of by copy.deepcopy(value, memo)"
            )
    for name, dtype in source.cast_buffers(model).items():
        _cast(copied, name, dtype)
    return copied


def _cast(model: nn.Module, name: str, dtype: torch.dtype) -> None:
    """A buffer as it was before mixed precision cast it, also if the script has replaced it since."""
    owner, _, key = name.rpartition(".")
    module = model.get_submodule(owner)
    buffer = module._buffers.get(key)
    if buffer is not None and buffer.dtype != dtype:
        module._buffers[key] = buffer.to(dtype)


def _apart(model: nn.Module, source: Sharded, memo: Memo) -> set[int]:
    """Ids of the copy's tensors that the plan does not have: parameters that were added or ignored, and buffers that mixed
    precision has not cast."""
    planned = {id(p) for p in _planned(source).values()}
    parameters = [p for p in model.parameters() if id(p) not in planned]
    cast_by_us = source.cast_buffers(model)
    buffers = [b for name, b in model.named_buffers() if name not in cast_by_us]
    return {id(memo[id(t)]) for t in (*parameters, *buffers) if id(t) in memo}


def _keep_values(model: nn.Module, made: nn.Module, source: Sharded) -> None:
    """Buffers that mixed precision casts: a cast to their own dtype and back may round."""
    now, before = dict(made.named_buffers()), dict(model.named_buffers())
    with torch.no_grad():
        for name in source.cast_buffers(model):
            if name in before and name in now:
                now[name].copy_(before[name])


def copyable(model: nn.Module, shard: Shard) -> None:
    """Let `model`, which is sharded, be copied."""
    ModuleChanges.on(model).put(model, "__deepcopy__", DeepCopy(model, shard))
