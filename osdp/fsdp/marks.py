"""Marks: the modules that a script wrapped as units, and the plan that follows from them if no other is
requested.

A marked module's parameters are one unit, gathered when the module is called, as in FSDP: any of them may be
read in the call. Unmarked parameters are gathered module by module.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from osdp.base.modules import HANDLES
from osdp.description.describe import describe
from osdp.description.model_description import ModelDescription, Operator
from osdp.description.recompute_blocks import is_callable
from osdp.errors import ShardingError
from osdp.fsdp.options import Options
from osdp.plan.choice import Choice
from osdp.plan.mixed_precision import MixedPrecision, as_mixed_precision
from osdp.plan.plan import Plan
from osdp.plan.unit_grouping import group_units, operator_dtypes
from osdp.planning.arguments import description_of
from osdp.sharding.fully_shard import fully_shard
from osdp.sharding.refusals import refuse_twice
from osdp.sharding.resharding import Resharding

# Module (not its wrapper) -> the options of its wrapper.
MARKS: WeakKeyDictionary[nn.Module, Options] = WeakKeyDictionary()


def marks_in(model: nn.Module) -> list[Options]:
    """The options of the wrappers in `model`, its own included."""
    return [MARKS[module] for module in model.modules() if module in MARKS]


def refuse_planned(model: nn.Module) -> None:
    """Raises ShardingError if a part was sharded with its own plan, since that plan could not be kept."""
    if any(module in HANDLES and module not in MARKS for module in model.modules()):
        refuse_twice(model)


def marked_plan(model: nn.Module, root: Options, described: ModelDescription | None = None) -> Plan:
    """The plan with the marked units, each in its own mode. Unmarked parameters follow `described`; if that
    is None, a description made with `root.sample`, if given."""
    marked = _marked(model)
    if described is None:
        described = describe(model) if root.sample is None else description_of(model, root.sample)
    if not marked:
        return Plan.uniform(described, root.mode, whole=root.whole)
    homes = {o.name: _home(o, marked, model) for o in described.operators}
    description = dataclasses.replace(
        described,
        operators=tuple(
            o if (home := homes[o.name]) is None else o.gathered_at((home,)) for o in described.operators
        ),
    )
    uniform = Plan.uniform(description, root.mode, whole=root.whole)
    choices = {
        name: choice
        if (home := homes[name]) is None or choice.mode != root.mode
        else Choice(marked[home].mode)
        for name, choice in uniform.choices.items()
    }
    return dataclasses.replace(uniform, choices=choices, units=_units(description, choices, homes))


def marked_precision(model: nn.Module, root: Options) -> object:
    """The mixed precision of the model, in which each part's own applies to its parameters and its call.

    Raises ShardingError if a part's differs from the model's and a plan is given or searched, since plans
    assume one precision.
    """
    whole = as_mixed_precision(root.precision)
    own = {name: as_mixed_precision(told.precision, part=True) for name, told in _marked(model).items()}
    if root.plan is not None or root.memory is not None:
        for name, part in own.items():
            if _dtypes(part) != _dtypes(whole):
                raise ShardingError(
                    f"{name!r} was wrapped with mixed_precision={part!r} and the model around it with "
                    f"{whole!r}, but a plan assumes one precision: give both the same, or leave out plan= and "
                    "memory=, so that each wrap's mode and precision apply. To keep modules in full precision, "
                    "name them in full_precision_modules of osdp.MixedPrecision or _module_classes_to_ignore of "
                    "torch's"
                )
        return root.precision
    if whole is None and not any(own.values()):
        return root.precision
    parts = tuple((name, part or MixedPrecision()) for name, part in own.items())
    return dataclasses.replace(whole or MixedPrecision(), parts=parts)


def _dtypes(policy: MixedPrecision | None) -> object:
    return policy and dataclasses.replace(policy, cast_forward_inputs=True, parts=())


def _marked(model: nn.Module) -> dict[str, Options]:
    """The marked modules' options by name, without the model itself."""
    return {name: MARKS[m] for name, m in model.named_modules() if name and m in MARKS}


def _home(operator: Operator, marked: dict[str, Options], model: nn.Module) -> str | None:
    """The innermost marked module that contains the operator and all modules that its parameters are tied
    to."""
    names = [name for p in operator.parameters for name in (p.name, *p.aliases)]
    around = [m for m in marked if names and all(n.startswith(f"{m}.") for n in names)]
    innermost = max(around, key=len, default=None)
    # A container is not called, so its contents are gathered as if it were not marked.
    return innermost if innermost is not None and is_callable(model.get_submodule(innermost)) else None


def _units(
    description: ModelDescription, choices: dict[str, Choice], homes: dict[str, str | None]
) -> tuple[tuple[str, ...], ...]:
    operators = {o.name: o for o in description.operators}
    units: dict[object, list[str]] = {}
    for number, unit in enumerate(group_units(description, choices)):
        for name in unit:
            home = homes[name]
            key = number if home is None else (home, choices[name].mode, operator_dtypes(operators[name]))
            units.setdefault(key, []).append(name)
    order = {o.name: i for i, o in enumerate(description.operators)}
    return tuple(sorted((tuple(unit) for unit in units.values()), key=lambda unit: order[unit[0]]))


def obey(
    module: nn.Module, plan: Plan, options: Options, resharding: Resharding, **initialising: Any
) -> None:
    """Shard `module` in place. Collective. `initialising`: the arguments of `osdp.fully_shard` for parameters
    without values.

    Raises the errors of `osdp.fully_shard`.
    """
    fully_shard(
        module,
        plan,
        options.process_group,
        device_mesh=options.device_mesh,
        ranks_per_host=options.ranks_per_host,
        device_id=options.device,
        cpu_offload=options.offload,
        mixed_precision=marked_precision(module, options),
        resharding=resharding,
        **initialising,
    )
