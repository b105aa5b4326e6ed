"""Which modules become units: auto_wrap_policy of FSDP1 and FairScale; FairScale's enable_wrap, wrap and auto_wrap.

A policy is asked, from the outside in, whether to look into a module, and on the way back whether to wrap it, with the
number of elements in it that are not wrapped yet.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

from torch import nn

from osdp.errors import InvalidProblemError

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
    """FairScale's: what has `min_num_params` elements left, containers excluded, and nothing inside attention."""
    large = unwrapped_params >= min_num_params
    if recurse:
        return large and not isinstance(
            module, _LEAVES if force_leaf_modules is None else tuple(force_leaf_modules)
        )
    excluded = _CONTAINERS if exclude_wrap_modules is None else tuple(exclude_wrap_modules)
    return (large or (module_is_root and skip_params_check_for_root)) and not isinstance(module, excluded)


def config_auto_wrap_policy(module: nn.Module, recurse: bool, *_: Any, **__: Any) -> bool:
    """FairScale's: what has an attribute `wrapper_config`, a dict of arguments."""
    return recurse or hasattr(module, "wrapper_config")


@contextmanager
def enable_wrap(
    auto_wrap_policy: Policy | None = None, *, wrapper_cls: Wrapper, **wrapper_kwargs: Any
) -> Iterator[None]:
    """Within, `wrap` and `auto_wrap` wrap, with `wrapper_cls` (osdp.FullyShardedDataParallel, say) and its arguments."""
    if _enabled:
        raise InvalidProblemError("enable_wrap inside of enable_wrap: use one of them")
    chosen: Policy = default_auto_wrap_policy if auto_wrap_policy is None else auto_wrap_policy
    _enabled.append((wrapper_cls, chosen, wrapper_kwargs))
    try:
        yield
    finally:
        _enabled.pop()


def wrap(module: nn.Module, **overrides: Any) -> nn.Module:
    """`module` wrapped, inside of `enable_wrap`; elsewhere as it is. `overrides`, and `module.wrapper_config`, go before the
    arguments of enable_wrap."""
    if not _enabled:
        return module
    wrapper, _, arguments = _enabled[0]
    return wrapper(module, **{**arguments, **getattr(module, "wrapper_config", {}), **overrides})


def auto_wrap(module: nn.Module, auto_wrap_policy: Policy | None = None, **overrides: Any) -> nn.Module:
    """`module` with those parts wrapped that the policy says, perhaps itself; elsewhere than in `enable_wrap` as it is."""
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
    """Replaces in `module` what the policy chooses by `wrapper(part)`, inside first, and returns it or its wrapper. What
    is `ignored` stays as it is."""
    names = inspect.signature(policy).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in names.values())
    wrapped: dict[int, nn.Module] = {}  # what stands in several places is wrapped once

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
