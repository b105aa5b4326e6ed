"""Patterns of modules and parameters that every rank holds in full: NO_SHARD, even if another mode is
faster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import translate

from osdp.base.names import did_you_mean, modules_around
from osdp.description.model_description import ModelDescription, Operator
from osdp.errors import InvalidProblemError


def patterns_of(whole: str | Sequence[str]) -> tuple[str, ...]:
    """The argument `whole` as a tuple of patterns. Raises InvalidProblemError for other values."""
    given = (whole,) if isinstance(whole, str) else whole
    if not isinstance(given, Sequence) or not all(isinstance(p, str) and p for p in given):
        raise InvalidProblemError(
            "whole must be patterns of module or parameter names, such as ['head', 'blocks.*.norm'], "
            f"got {whole!r}"
        )
    return tuple(given)


def whole_operators(description: ModelDescription, patterns: Sequence[str]) -> frozenset[str]:
    """The operators with parameters that match a pattern: by their own name, that of a module around them, or
    one of their parameters' (tied names included). Patterns are the shell's, case-sensitive; `*` also matches
    dots.

    Raises InvalidProblemError naming a pattern that matches nothing.
    """
    if not patterns:
        return frozenset()
    names = {o.name: tuple(_names(o)) for o in description.operators if o.parameters}
    found: set[str] = set()
    for pattern in patterns:
        matches = re.compile(translate(pattern)).match
        named = {o for o, own in names.items() if any(matches(name) for name in own)}
        if not named:
            known = {name for own in names.values() for name in own}
            raise InvalidProblemError(
                f"whole: {pattern!r} matches no parameter and no module with parameters"
                f"{did_you_mean(pattern, known)}"
            )
        found |= named
    return frozenset(found)


def _names(o: Operator) -> Iterator[str]:
    for name in (o.name, *(name for p in o.parameters for name in (p.name, *p.aliases))):
        yield from filter(None, modules_around(name))
