"""Warnings that point at the user's line: the one that called OSDP, directly or through torch."""

from __future__ import annotations

import sys
import warnings

_PASSED_OVER = {"osdp", "torch"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """`warnings.warn`, from the first frame that is neither OSDP's nor torch's: a fixed stacklevel is right for one way of
    calling only, and a module's forward has torch's frames in between."""
    # By the module's name and not the file's: a dataclass's __init__ is in the file "<string>", as a user's `python -c` is.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _package(frame.f_globals) in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _package(names: dict[str, object]) -> str:
    return str(names.get("__name__", "")).partition(".")[0]
