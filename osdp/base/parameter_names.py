"""Parameters' names in state dicts."""

from __future__ import annotations

_CHECKPOINT_WRAPPER = "_checkpoint_wrapped_module."


def without_wrappers(name: str) -> str:
    """`name` of `named_parameters()` as state dicts have it: torch's checkpoint_wrapper takes its own part out of them.

    >>> without_wrappers("blocks.0._checkpoint_wrapped_module.up.weight")
    'blocks.0.up.weight'
    """
    return name.replace(_CHECKPOINT_WRAPPER, "")
