"""The module calls that gather a plan's units: a hook of the runtime on each module that reads a unit's parameters."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from osdp import _C
from osdp.plan.plan import Plan
from osdp.sharding.compile_covers import Cover, covers
from osdp.sharding.compile_hooks import compiled_modules, install_call, outside


def install_calls(
    model: nn.Module, plan: Plan, index: dict[str, int], runtime: _C.Runtime, mixed: Collection[str]
) -> tuple[list[tuple[nn.Module, _C.CallHook, Cover | None]], list[tuple[nn.Module, _C.CallHook, Cover]]]:
    """Returns modules that gather, with their hooks and covers; and modules that are covers, with theirs.
    `mixed`: parameters whose dtype in calls differs from that between calls."""
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

    def add(name: str, params: list[int], hold: bool, method: bool) -> _C.CallHook:
        hook = runtime.add_call(name, params, name == "", hold, method=method)
        for i in params if name else range(len(names)):
            owner, _, leaf = names[i].rpartition(".")
            hook.hold(model.get_submodule(owner)._parameters, leaf, model.get_parameter(names[i]), i)
        return hook

    calls = []
    covering = []
    cover_of: dict[str, Cover] = {}
    elsewhere = _owners_not_called(model, params_at, compiled)
    for name, inside in covers(model, units_at).items():
        hook = add(name, [i for place in inside for i in params_at[place]], False, True)
        covering.append((model.get_submodule(name), hook, Cover()))
        cover_of |= dict.fromkeys(inside, covering[-1][2])
    for name, params in [*params_at.items(), *elsewhere.items()]:
        hold = any(name == block or name.startswith(f"{block}.") for block in held)
        hook = add(name, params, hold, name in elsewhere)
        module = model.get_submodule(name)
        install_call(module, hook, cover_of.get(name))
        calls.append((module, hook, cover_of.get(name)))
    return calls, covering


def _owners_not_called(
    model: nn.Module, params_at: dict[str, list[int]], compiled: list[str]
) -> dict[str, list[int]]:
    """Modules whose parameters other modules read: the model's forward does not call them, but they may be
    called directly."""
    index = {id(p): i for i, p in enumerate(model.parameters())}
    gathered = {i for params in params_at.values() for i in params}
    found: dict[str, list[int]] = {}
    for name, module in model.named_modules():
        own = {index[id(p)] for p in module._parameters.values() if p is not None} & gathered
        if own and name not in params_at and outside(name, compiled) == name:
            found[name] = sorted(own)
    return found
