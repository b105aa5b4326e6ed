"""What errors say that several tests expect: the prose of each in one place."""

from __future__ import annotations


def ungathered(name: str = ".*") -> str:
    """A pattern for the error of a read of a parameter (`name`, a pattern) that is not gathered."""
    return rf"'{name}' was read while it is not gathered"
