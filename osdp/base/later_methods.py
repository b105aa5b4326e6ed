"""Methods of values that higher packages implement: `plan.explain()` is implemented by osdp.show.

A value calls the method by name, and osdp/__init__.py registers its function, so that values import no higher
package.
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
