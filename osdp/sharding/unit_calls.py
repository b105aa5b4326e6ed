"""The module calls that gather a plan's units: a hook of the runtime on each module that reads a unit's parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from osdp import _C
from osdp.base.names import is_in
from osdp.description.recompute_blocks import is_callable
from osdp.sharding.compile_hooks import Cover, compiled_modules, covers, install_call, outside
from osdp.sharding.model_call import ModelCall
from osdp.sharding.sharded_model import Sharded


def install_calls(
    model: nn.Module, sharded: Sharded, mixed: Collection[str]
) -> tuple[
    list[tuple[nn.Module, _C.CallHook, Cover | None]], list[tuple[nn.Module, _C.CallHook | None, Cover]]
]:
    """Returns modules that gather, with their hooks and covers; and modules that are covers, with theirs, which gather
    by them, or whose call does (None). `mixed`: parameters whose dtype in calls differs from that between calls."""
    plan, index, runtime = sharded.plan, sharded.index, sharded.runtime
    compiled = compiled_modules(model)
    params_at: dict[str, list[int]] = {"": []}
    units_at: dict[str, set[int]] = {}
    unit_of = {member: i for i, members in enumerate(plan.units) for member in members}
    for operator in plan.description.operators:
        choice = plan.choices.get(operator.name)
        if choice is None:
            continue
        called = [p.name for p in operator.parameters if choice.traits.sharded or p.name in mixed]
        places = {outside(place, compiled): None for place in operator.gather_at if called}
        for place in places:
            params_at.setdefault(place, []).extend(index[name] for name in called)
            units = units_at.setdefault(place, set())
            units |= {unit_of[operator.name]} if choice.traits.sharded else set()
    held = [name for name, how in plan.recompute.items() if how == "hold"]
    names = list(index)

    def add(name: str, params: list[int], hold: bool, method: bool, more: list[int]) -> _C.CallHook:
        hook = runtime.add_call(name, params, name == "", hold, method=method, alone=more)
        for i in dict.fromkeys([*params, *more]) if name else range(len(names)):
            owner, _, leaf = names[i].rpartition(".")
            hook.hold(model.get_submodule(owner)._parameters, leaf, model.get_parameter(names[i]), i)
        return hook

    calls = []
    covering: list[tuple[nn.Module, _C.CallHook | None, Cover]] = []
    cover_of: dict[str, Cover] = {}
    alone = _called_by_themselves(model, params_at, compiled)
    for name, inside in covers(model, units_at).items():
        hook = add(name, [i for place in inside for i in params_at[place]], False, True, [])
        covering.append((model.get_submodule(name), hook, Cover()))
        cover_of |= dict.fromkeys(inside, covering[-1][2])
    for place, inside in _covered_by_a_call(params_at, alone, cover_of).items():
        covering.append((model.get_submodule(place), None, Cover()))
        cover_of |= dict.fromkeys(inside, covering[-1][2])
    for name in dict.fromkeys([*params_at, *alone]):
        hold = any(is_in(name, block) for block in held)
        hook = add(name, params_at.get(name, []), hold, name not in params_at, alone.get(name, []))
        module = model.get_submodule(name)
        if not name:
            sharded.call = ModelCall(hook)
        install_call(module, hook, cover_of.get(name), None if name else sharded.call)
        calls.append((module, hook, cover_of.get(name)))
    return calls, covering


def _covered_by_a_call(
    params_at: Mapping[str, list[int]], alone: Mapping[str, list[int]], covered: Collection[str]
) -> dict[str, list[str]]:
    """Modules at whose call all is gathered that modules inside gather where they are called by themselves; and these. In
    FSDP2's manner blocks, and the layers in them. See Note [Covers]."""
    found: dict[str, list[str]] = {}
    for name, params in alone.items():
        if name in params_at or name in covered:
            continue
        outer = (place for place in params_at if is_in(name, place))
        for place in sorted(outer, key=len, reverse=True):
            if set(params) <= {*params_at[place], *alone.get(place, [])}:
                found.setdefault(place, []).append(name)
                break
    return found


def _called_by_themselves(
    model: nn.Module, params_at: dict[str, list[int]], compiled: list[str]
) -> dict[str, list[int]]:
    """Parameters that a module's call gathers beside its places in `params_at`: for a module that is called directly, and
    not by the model. They are those inside of it that are gathered further out, and its own that other modules read."""
    index = {id(p): i for i, p in enumerate(model.parameters())}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(index[id(parameter)], []).append(name)
    found: dict[str, dict[int, None]] = {}
    for place, params in params_at.items():
        for i in params:
            for name in names[i]:
                inside = name.rpartition(".")[0]
                if inside not in params_at:
                    found.setdefault(inside, {})[i] = None
                while inside and inside != place and is_in(inside, place):
                    found.setdefault(inside, {})[i] = None
                    inside = inside.rpartition(".")[0]
    usable = (n for n in found if n and outside(n, compiled) == n and is_callable(model.get_submodule(n)))
    return {name: sorted(found[name]) for name in usable}
