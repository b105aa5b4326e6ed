"""Parts of a model that `auto_wrap_policy` selects, each with the arguments that the policy gives for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from osdp.errors import InvalidProblemError
from osdp.fsdp.ignored import ignored_modules
from osdp.fsdp.marks import MARKS
from osdp.fsdp.options import Options
from osdp.fsdp.wrap import wrap_by_policy


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
