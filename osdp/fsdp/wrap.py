"""Which modules become units: auto_wrap_policy of FSDP1 and FairScale; FairScale's enable_wrap, wrap and auto_wrap.

A policy is called from the outside in to decide whether to descend into a module, and on the way back whether
to wrap it, with the number of its parameter elements that are not wrapped yet.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

from torch import nn

from osdp.errors import InvalidProblemError
from osdp.fsdp.ignored import ignored_modules
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options

Policy = Callable[..., Any]
Wrapper = Callable[..., nn.Module]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_LEAVES = (nn.MultiheadAttention,)
_enabled: list[tuple[Wrapper, Policy, dict[str, Any]]] = []


def default_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    module_is_root: bool,
    min_num_params: int = 10**8,
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
    skip_params_check_for_root: bool = False,
) -> bool:
    """FairScale's: wrap modules with at least `min_num_params` unwrapped elements, except containers and the
    insides of attention."""
    large = unwrapped_params >= min_num_params
    if recurse:
        return large and not isinstance(
            module, _LEAVES if force_leaf_modules is None else tuple(force_leaf_modules)
        )
    excluded = _CONTAINERS if exclude_wrap_modules is None else tuple(exclude_wrap_modules)
    return (large or (module_is_root and skip_params_check_for_root)) and not isinstance(module, excluded)


def config_auto_wrap_policy(module: nn.Module, recurse: bool, *_: Any, **__: Any) -> bool:
    """FairScale's: wrap modules with an attribute `wrapper_config`, a dict of arguments."""
    return recurse or hasattr(module, "wrapper_config")


@contextmanager
def enable_wrap(
    auto_wrap_policy: Policy | None = None, *, wrapper_cls: Wrapper, **wrapper_kwargs: Any
) -> Iterator[None]:
    """Context in which `wrap` and `auto_wrap` wrap with `wrapper_cls` (such as osdp.FullyShardedDataParallel)
    and its arguments."""
    if _enabled:
        raise InvalidProblemError("enable_wrap does not nest: use one of the two")
    chosen: Policy = default_auto_wrap_policy if auto_wrap_policy is None else auto_wrap_policy
    _enabled.append((wrapper_cls, chosen, wrapper_kwargs))
    try:
        yield
    finally:
        _enabled.pop()


def wrap(module: nn.Module, **overrides: Any) -> nn.Module:
    """Wrap `module` inside `enable_wrap`; outside, return it unchanged. `overrides` and
    `module.wrapper_config` take precedence over the arguments of enable_wrap."""
    if not _enabled:
        return module
    wrapper, _, arguments = _enabled[0]
    return wrapper(module, **{**arguments, **getattr(module, "wrapper_config", {}), **overrides})


def auto_wrap(module: nn.Module, auto_wrap_policy: Policy | None = None, **overrides: Any) -> nn.Module:
    """Wrap the parts of `module` that the policy selects, perhaps itself; outside of `enable_wrap`, return it
    unchanged."""
    if not _enabled:
        return module
    policy = auto_wrap_policy or _enabled[0][1]
    return wrap_by_policy(module, policy, functools.partial(wrap, **overrides))


def wrap_by_policy(
    module: nn.Module,
    policy: Policy,
    wrapper: Wrapper,
    *,
    only_children: bool = False,
    ignored: Set[nn.Module] = frozenset(),
) -> nn.Module:
    """Replace each part of `module` that the policy selects by `wrapper(part)`, innermost first, and return
    `module` or its wrapper. `ignored` modules are not wrapped."""
    names = inspect.signature(policy).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in names.values())
    wrapped: dict[int, nn.Module] = {}  # a module that occurs several times is wrapped once

    def asked(part: nn.Module, recurse: bool, elements: int, root: bool) -> bool:
        told = {"nonwrapped_numel": elements, "unwrapped_params": elements, "module_is_root": root}
        passed = {name: value for name, value in told.items() if name in names}
        if anything:
            passed |= {name: told[name] for name in ("nonwrapped_numel",) if not passed}
        return bool(policy(module=part, recurse=recurse, **passed))

    def visit(part: nn.Module, root: bool) -> tuple[nn.Module, int]:
        elements = sum(p.numel() for p in part.parameters())
        if hasattr(part, "_osdp_wrapped"):
            return part, elements
        if not asked(part, True, elements, root):
            return part, 0
        inside = 0
        for key, child in list(part._modules.items()):
            if child is None or child in ignored:
                continue
            if id(child) in wrapped:
                part._modules[key] = wrapped[id(child)]
                continue
            made, count = visit(child, False)
            inside += count
            if made is not child:
                wrapped[id(child)] = part._modules[key] = made
        if (root and only_children) or not asked(part, False, elements - inside, root):
            return part, inside
        return wrapper(part), elements

    return visit(module, True)[0]


def wrap_selected(
    model: nn.Module, options: Options, wrapper: Callable[[nn.Module, Options], nn.Module]
) -> None:
    """Replace the parts that the policy selects by `wrapper(part, arguments of its own)`."""
    policy = options.auto_wrap_policy
    own: dict[nn.Module, dict[str, Any]] = {}  # arguments that a CustomPolicy returns for some modules
    if hasattr(policy, "_run_policy"):
        own = policy._run_policy(model, set(), {})

    def chosen(module: nn.Module, recurse: bool) -> bool:
        return recurse or module in own

    def wrapped(module: nn.Module) -> nn.Module:
        return wrapper(module, Options.of((), own.get(module, {})))

    ignored = ignored_modules(options)
    wrap_by_policy(model, chosen if own else policy, wrapped, only_children=True, ignored=ignored)


def mark_selected(model: nn.Module, options: Options) -> None:
    """Mark the parts that the policy selects as units, without a wrapper around them: a framework's model keeps its modules.

    Raises InvalidProblemError where the policy gives a part a process group of its own.
    """

    def marked(module: nn.Module, told: Options) -> nn.Module:
        if told.process_group is not None or told.device_mesh is not None:
            raise InvalidProblemError(
                f"auto_wrap_policy gives a {type(module).__name__} a process group of its own: wrap it yourself "
                "in osdp.FullyShardedDataParallel(module, process_group)"
            )
        MARKS[module] = dataclasses.replace(options, **told.given(), auto_wrap_policy=None)
        return module

    if options.auto_wrap_policy is not None:
        wrap_selected(model, options, marked)
