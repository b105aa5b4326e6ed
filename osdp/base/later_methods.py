"""Methods of values that packages above implement: `plan.explain()` is made by osdp.show, which knows plans.

A value names its method, and osdp/__init__.py says which function it is, so that no value imports what is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_functions: dict[str, str] = {}


def implement(functions: Mapping[str, str]) -> None:
    """`functions`: "Plan.explain" -> "osdp.show.explain.explain", imported when it is first called."""
    _functions.update(functions)


def function_of(method: str) -> Callable[..., Any]:
    module, _, name = _functions[method].rpartition(".")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
