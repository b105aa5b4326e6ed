"""Makes the plan again at the first forward, from its inputs, if the script gave no sample before.

Note [When the plan is made]
A wrapper shards immediately, so that no rank holds more in full than the module being wrapped. But scripts
for FSDP give no sample, and without one it is unknown which modules read which parameters. The outermost
module's first forward with gradients has real inputs: rank 0 traces it on tensors without data, all ranks
apply the resulting plan, and the forward then runs under it. Without `memory=` modes do not change, so
neither do each rank's rows: the model is regrouped, and parameters that no wrapper has marked are now
gathered by the module that reads them instead of by its parent. With `memory=` the plan is searched; where it
changes rows, the model is sharded anew, and these rows (and optimizer states for them, if some were loaded)
are redistributed, one parameter after another. Parameters remain the same objects.
  Without `memory=` this only saves memory, so units are left unchanged if the forward cannot be traced, if it runs within
  a transform of torch.func, or if tracing would be visible (the script's own hooks would be called once more).
  The call is intercepted by a temporary subclass that the module gets until then. A hook would run too late,
  since a call looks up all hooks and forward before it runs the first hook.
  A registered method (Lightning's `training_step`) may be what trains, so its first call makes the plan as well, and
  is traced instead of forward, if it reads every parameter that needs a gradient. One that does not is a helper,
  such as a penalty on a few weights, and tells too little of a step.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from osdp.base.cast_floats import to_device
from osdp.base.made_classes import reduced
from osdp.base.modules import is_compiled
from osdp.base.names import is_in
from osdp.base.tensor_trees import batch_of
from osdp.base.warned import warn
from osdp.description.describe import watched_once
from osdp.description.model_description import ModelDescription
from osdp.errors import DescribeError, ShardingError
from osdp.fsdp.ignored import ignoring
from osdp.fsdp.marks import marked_plan, marked_precision, marks_in, obey
from osdp.fsdp.method_as_forward import method_as_forward
from osdp.fsdp.moved_states import MovedStates
from osdp.fsdp.options import Options
from osdp.fsdp.searched_plan import searched_plan
from osdp.fsdp.state_dict_types import carry_over
from osdp.plan.plan import Plan
from osdp.ranks.rank_group import Together
from osdp.sharding.forward_methods import named_in_forward
from osdp.sharding.fully_shard import regroup
from osdp.sharding.mixed_precision import chosen_precision
from osdp.sharding.resharding import Resharding
from osdp.sharding.separate_parts import SeparateParts
from osdp.sharding.sharded_model import Sharded, runtime_of, sharded_of


@dataclass(frozen=True)
class _Wait:
    options: Options  # of the model's wrapper
    helpers: set[str] = field(default_factory=set)  # registered methods whose first call made no plan


# Sharded models whose plan is still to be made.
_waiting: WeakKeyDictionary[nn.Module, _Wait] = WeakKeyDictionary()
_SAMPLE = "or pass sample=, a tuple or dict of example inputs, to the wrap"


def wait_for_inputs(model: nn.Module, options: Options) -> None:
    """Called after `model` was sharded without a sample: its first forward, or registered method, will make the plan."""
    sharded = sharded_of(model)
    if sharded is None or options.plan is not None or options.sample is not None:
        return
    if options.memory is None and not any(c.traits.sharded for c in sharded.plan.choices.values()):
        return
    kind = type(model)
    searches = options.memory is not None

    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if searches:
                _refuse_compiled(self)
        elif self in _waiting:
            if sharded.inputs_device is not None:
                args, kwargs = (to_device(given, sharded.inputs_device) for given in (args, kwargs))
            _before_call(self, None, args, kwargs)
        return kind.__call__(self, *args, **kwargs)

    def __reduce_ex__(self: nn.Module, protocol: Any) -> Any:
        return reduced(self, protocol, kind)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_osdp_kind": kind}
    methods = {"__call__": __call__, "__reduce_ex__": __reduce_ex__}
    model.__class__ = type(kind.__name__, (kind,), {**names, **methods})
    _waiting[model] = _Wait(options)
    sharded.before_method = _before_method
    if searches:
        sharded.unsettled = (
            "memory= searches its plan at its first forward, after which each rank has other rows: run one step before, "
            + _SAMPLE
        )


def is_waiting(model: nn.Module, method: str) -> bool:
    """Whether the plan of `model` is still to be made, and a call of this registered method might make it."""
    return model in _waiting and method not in _waiting[model].helpers


def options_of_wait(model: nn.Module) -> Options | None:
    """The options of its wrapper, if `model` waits."""
    return _waiting[model].options if model in _waiting else None


def stop_waiting(model: nn.Module) -> Options | None:
    """Cancel the wait: `model` remains as its wrapper sharded it. Returns the options of the wrapper."""
    wait = _waiting.pop(model, None)
    if wait is None:
        return None
    model.__class__ = type(model)._osdp_kind  # type: ignore[attr-defined]
    return wait.options


def copy_wait(model: nn.Module, copied: nn.Module, options_of_copy: Callable[[Options], Options]) -> None:
    """`copied`, which is sharded as `model` is, waits too if `model` does."""
    if model in _waiting:
        wait_for_inputs(copied, options_of_copy(_waiting[model].options))
        _waiting[copied].helpers.update(_waiting[model].helpers)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _refuse_compiled(model: nn.Module) -> None:
    if model in _waiting and model.training and torch.is_grad_enabled():
        raise ShardingError(
            "memory= searches during the first forward, which is being compiled: run one step before "
            "torch.compile, " + _SAMPLE
        )


def _before_method(model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
    if is_waiting(model, name) and not torch.compiler.is_compiling():
        _before_call(model, name, args, kwargs)


def _before_call(model: nn.Module, method: str | None, args: Any, kwargs: Any) -> None:
    """Collective at the first forward (`method` None) or registered method in training mode with gradients;
    other calls change nothing."""
    if not (model.training and torch.is_grad_enabled()) or torch._C._current_graph_task_id() != -1:
        return  # within a backward it is recomputed
    if torch._C._are_functorch_transforms_active():
        # Parameters cannot be exchanged there, nor afterwards, under the graph that this forward leaves for backward.
        if _waiting[model].options.memory is None:
            stop_waiting(model)
        return
    sharded = sharded_of(model)
    if sharded is None or sharded.in_use:
        return  # None: a part that is read for the plan of the model around it
    held = {id(p): p for p in model.parameters()}
    replaced = not sharded.runtime.tree_changed and any(id(p) not in held for p in sharded.tree.known)
    if replaced or any(not isinstance(p, nn.Parameter) for p in held.values()):
        return  # torch.func.functional_call has put other tensors there for this call
    sharded.runtime.end_read_only()
    helpers = _waiting[model].helpers
    options = stop_waiting(model)
    assert options is not None
    together = Together(sharded.group, f"making the plan at the first {method or 'forward'}")
    seen = _would_be_seen(model)
    try:
        with SeparateParts(model, sharded.group) as separate, ignoring(model, marks_in(model)):
            first = _First(model, sharded, options, together, separate, method, args, kwargs)
            try:
                if options.memory is not None:
                    _search(first)
                elif not any(together.all(seen)):
                    _regroup(first)
            except _AsItIsError:
                if method is not None:
                    wait_for_inputs(model, options)
                    _waiting[model].helpers.update(helpers, [method])
    except BaseException:
        if sharded_of(model) is sharded:  # unchanged
            wait_for_inputs(model, options)
            _waiting[model].helpers.update(helpers)
        raise


@dataclass(frozen=True)
class _First:
    """The first call of a model, and what its wrapper was told."""

    model: nn.Module
    sharded: Sharded
    options: Options
    together: Together
    separate: SeparateParts
    method: str | None  # None: forward
    args: Any
    kwargs: Any

    def watched(self) -> ModelDescription:
        with method_as_forward(self.model, self.method):
            return watched_once(self.model, self.args, self.kwargs)

    def unread_by_method(self) -> str | None:
        """`_unread` on rank 0, None for a forward. Collective. Raises DescribeError where the method cannot be traced."""
        if self.method is None:
            return None

        def found() -> str | None:
            try:
                return _unread(self.watched())
            except DescribeError as error:
                raise DescribeError(
                    f"memory= searches at the first call in training, {self.method}(), and tracing it failed: {error}; "
                    f"{_SAMPLE}"
                ) from error

        return self.together.done_first("tracing the first call", found)


class _AsItIsError(Exception):
    """Ends a resharding without changes."""


def _search(first: _First) -> None:
    model, together = first.model, first.together
    told = dict(first.options.search or {})
    if "global_batch_size" not in told:
        told.setdefault("batch_size", max(batch_of((first.args, first.kwargs)), 1))
    states = together.do("looking for optimizer states", lambda: MovedStates(model, first.sharded))
    states.agree(together)
    with Resharding(model) as resharding:
        with first.separate.readable():
            unread = first.unread_by_method()
        if unread is not None:
            warn(
                f"memory= waits for a call that trains all parameters: {first.method}() of {type(model).__name__} "
                f"does not read {unread!r}; pass sample= if no other call does",
            )
            raise _AsItIsError
        with method_as_forward(model, first.method), first.separate.readable():
            sample = together.do(
                "converting the inputs to a sample", lambda: _as_sample(model, first.args, first.kwargs)
            )
            options = dataclasses.replace(first.options, sample=sample, search=told)
            plan = searched_plan(model, options, first.separate)
        _apply(first, plan, resharding)
    states.move(resharding, runtime_of(model))


def _regroup(first: _First) -> None:
    with Resharding(first.model) as resharding:
        with first.separate.readable():
            text = first.together.done_first("tracing the first forward", lambda: _regrouped(first))
        if text is None:
            raise _AsItIsError
        _apply(first, Plan.loads(text), resharding)


def _apply(first: _First, plan: Plan, resharding: Resharding) -> None:
    """Regroup the model; shard it anew only where rows change."""
    model, sharded = first.model, first.sharded
    policy = chosen_precision(marked_precision(model, first.options), plan, model)
    if all(first.together.all(resharding.keeps_rows(plan, policy))):
        regroup(resharding, plan)
        sharded.unsettled, sharded.before_method = "", None
        return
    obey(model, plan, first.options, resharding)
    carry_over(sharded, runtime_of(model))


def _regrouped(first: _First) -> str | None:
    """Rank 0's plan; None if it would change nothing."""
    try:
        watched = first.watched()
        if first.method is not None and _unread(watched):
            return None
        plan = marked_plan(first.model, first.options, _with_named(watched, first.model))
    except DescribeError:
        return None
    return None if _places(plan) == _places(first.sharded.plan) else plan.dumps()


def _unread(described: ModelDescription) -> str | None:
    """A parameter that needs a gradient and was not read."""
    parameters = (p for o in described.operators if not o.traced for p in o.parameters)
    return next((p.name for p in parameters if p.trainable), None)


def _places(plan: Plan) -> object:
    return plan.units, {o.name: o.gather_at for o in plan.description.operators if o.parameters}


def _with_named(described: ModelDescription, model: nn.Module) -> ModelDescription:
    """Parameters that a forward's code names (`self.table.weight`) on a path that these inputs did not take
    are gathered there too."""
    owner = {p.name: o.name for o in described.operators for p in o.parameters}
    names = {id(p): owner[name] for name, p in model.named_parameters()}
    at: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        for parameter in named_in_forward(module):
            if id(parameter) in names and names[id(parameter)] != name:
                at.setdefault(names[id(parameter)], []).append(name)

    def extended(places: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
        apart = [p for p in places if not any(is_in(p, m) for m in more)]
        return tuple(dict.fromkeys([*apart, *more]))

    operators = (
        o.gathered_at(extended(o.gather_at, at[o.name])) if o.name in at else o for o in described.operators
    )
    return dataclasses.replace(described, operators=tuple(operators))


def _would_be_seen(model: nn.Module) -> bool:
    """Whether a traced forward might be visible to the script, or units cannot be changed now."""
    hooks = (hook for of in (nn.modules.module, *model.modules()) for hook in _hooks(of))
    return (
        any(map(_is_scripts, hooks))
        or any(map(is_compiled, model.modules()))
        or any(p.grad is not None for p in model.parameters())
    )


def _hooks(of: Any) -> Iterator[Any]:
    """Those of a module, or of torch's module for all of them."""
    prefix = "_" if isinstance(of, nn.Module) else "_global_"
    for kind in ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"):
        yield from getattr(of, prefix + kind).values()


def _is_scripts(hook: Any) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.partition(".")[0] not in ("torch", "osdp")


def _as_sample(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`args` and `kwargs` as one sample; raises ShardingError where nameless positional arguments
    (positional-only or *args) are passed besides named ones."""
    if not kwargs:
        return args
    if not args:
        return dict(kwargs)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ShardingError(f"memory= searches with the inputs of the first forward: {error}") from None
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ShardingError(
                "memory= searches with the inputs of the first forward, which were passed partly by "
                f"position ({name!r}) and partly by name: pass all of them by name, " + _SAMPLE
            )
        else:
            named[name] = value
    return named
