"""state_dict of a sharded model uses full tensors under the unwrapped model's names, unless its StateDictForm says
otherwise.

Note [A module's own state-dict code]
A module may have code of its own that state_dict() or load_state_dict() runs: hooks, overridden methods, extra state. It
reads `self.weight`, or what state_dict() has stored for it, and must find values there, not this rank's rows. So while a
module's state_dict() runs, its own sharded parameters are full: torch stores them, and whatever else runs, in torch's order,
sees them. This is done by methods in the modules' __dict__, like their forward: torch calls a child's state_dict() by
name, also an overridden one, and hooks that are registered later are inside of it too. They end it whatever happens.
  In sharded state dicts parameters are DTensors meanwhile, as FSDP2's always are. Local state dicts have rows, which a
module's own code would take for values: refused.
  state_dict() is collective. A module's parameters are gathered when its turn comes, and are full until its children are
done, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from osdp.base.modules import unwrapped
from osdp.base.warned import warn
from osdp.errors import ShardingError
from osdp.sharding.load_state_dict import loading
from osdp.sharding.module_changes import ModuleChanges
from osdp.sharding.nested_models import modules_in_parts, refuse_parts
from osdp.sharding.own_values import (
    dtensor_values,
    full_values,
    own_sharded,
    reads_others,
    refuse_rows,
    saving_code,
)
from osdp.sharding.read_values import ReadValues
from osdp.sharding.sharded_model import Sharded
from osdp.sharding.snapshot_writes import forget_given, tell_of_writes
from osdp.sharding.snapshots import Snapshot, newest


def show_full_parameters(model: nn.Module, sharded: Sharded) -> None:
    """Make the state dicts of modules that are not prepared yet show full parameters."""
    apart = set(modules_in_parts(model))
    for module in model.modules():
        wraps = unwrapped(module) is not module  # the module inside is enough
        if module in sharded.shown or module in apart or (wraps and module is not model):
            continue
        sharded.shown.add(module)
        begin = functools.partial(_begin_loading, module, model, sharded)
        for name, method in (*_saving(module, model, sharded), *loading(module, sharded, begin)):
            ModuleChanges.put_on(model, module, name, ModuleMethod(module, sharded, name, method))


def _saving(
    module: nn.Module, model: nn.Module, sharded: Sharded
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """`state_dict` of a module of `model`, and `_save_to_state_dict`, for those who call the class's state_dict()."""
    whole, own = module.state_dict, module._save_to_state_dict

    @functools.wraps(whole)
    def state_dict(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("destination", "prefix"), args, strict=False)) | kwargs
        with _running(module, model, sharded, given.get("destination"), given.get("prefix", "")) as settle:
            return settle(whole(*args, **kwargs))

    @functools.wraps(own)
    def _save_to_state_dict(destination: Any, prefix: str, keep_vars: bool) -> None:
        if sharded.saving is not None and sharded.saving.inside[-1:] == [module]:
            return own(destination, prefix, keep_vars)
        with _running(module, model, sharded, destination, prefix) as settle:
            own(destination, prefix, keep_vars)
            settle(destination)

    yield "state_dict", state_dict
    yield "_save_to_state_dict", _save_to_state_dict


@contextmanager
def _running(
    module: nn.Module, model: nn.Module, sharded: Sharded, destination: Any, prefix: str
) -> Iterator[Callable[[Any], Any]]:
    """Context of a module's state_dict(). Gives a function to be called with its result."""
    if module is model:
        _check_whole(model, sharded)
    around = sharded.saving
    outermost = around is None or destination is None
    if outermost:
        tell_of_writes(model, sharded)
    call = Snapshot(module, sharded, prefix) if around is None or destination is None else around
    before = len(destination) if destination is not None else 0

    def settle(state: Any) -> Any:
        keys = [key for key in state if key.startswith(prefix)] if outermost else newest(state, before)
        call.settle(module, state, keys)
        if outermost:
            call.end(state, keys)
            if call.parts and sharded.form.rank0_only and sharded.runtime.rank == 0:
                warn(
                    f"OSDP: rank 0's state dict has the {call.parts[0].removesuffix('.')!r} of its own group of ranks. The "
                    "other groups' are in the state dicts of their first ranks: save these too.",
                )
        return state

    sharded.saving = call
    call.inside.append(module)
    try:
        with _own_values(module, sharded, call.full, prefix):
            yield settle
    finally:
        call.inside.pop()
        sharded.saving = around


@contextmanager
def _own_values(module: nn.Module, sharded: Sharded, full: bool, prefix: str) -> Iterator[None]:
    code = saving_code(module)
    if not full and sharded.form.kind == "local":
        if code and any(True for _ in own_sharded(module, sharded)):
            refuse_rows(module, prefix, code)
        yield
        return
    with ExitStack() as stack:
        if code and reads_others(module, sharded):
            stack.enter_context(ReadValues(sharded, keep=False))
        stack.enter_context((full_values if full else dtensor_values)(module, sharded))
        yield


def _begin_loading(module: nn.Module, model: nn.Module, sharded: Sharded) -> None:
    forget_given()
    if not sharded.in_use:
        sharded.runtime.end_read_only()
    if module is model and sharded.runtime.tree_changed:
        show_full_parameters(model, sharded)


def _check_whole(model: nn.Module, sharded: Sharded) -> None:
    if sharded.form.kind == "sharded":
        refuse_parts(
            model,
            "A sharded state dict",
            "Take a full one (FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)), in which each rank has "
            "its own, or each part's by itself, in a directory per group",
        )
    sharded.tree.look_between_steps(model)


class ModuleMethod:
    """A copy of the module, which is not sharded, has its class's method; a module with sharded parameters is not copied:
    its copy would have this rank's rows."""

    def __init__(self, module: nn.Module, sharded: Sharded, name: str, function: Callable[..., Any]) -> None:
        self._module, self._sharded, self._name, self._function = module, sharded, name, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._refuse_rows()
        return getattr(type(self._module), self._name).__get__(memo[id(self._module)])

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_rows()
        return getattr, (self._module, self._name)

    def _refuse_rows(self) -> None:
        if any(True for _ in own_sharded(self._module, self._sharded)):
            raise ShardingError(
                f"a {type(self._module).__name__} of a sharded model cannot be copied or pickled by itself: its parameters "
                "are this rank's rows. Copy the model, or save the module's state_dict()"
            )
