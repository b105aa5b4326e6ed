"""Names of modules and parameters, as `named_modules()` and `named_parameters()` have them; "" is the model itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator


def joined(module: str, name: str) -> str:
    """The name of what the module calls `name`."""
    return f"{module}.{name}" if module else name


def is_in(name: str, module: str) -> bool:
    """Whether `name` is the module, or a part of it; everything is in ""."""
    return not module or name == module or name.startswith(f"{module}.")


def modules_around(name: str) -> Iterator[str]:
    """`name` and the modules around it, from the inside out; the last one is ""."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'blocks.0'?" where one of `known` is near `name`; else ""."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
