"""What the extension osdp._C is told when it is first used, and at the end of the process."""

from __future__ import annotations

import atexit
import os
import sys

from osdp import _C, errors

_C.set_error_types(
    [
        errors.ShardingError,
        errors.RankError,
        errors.OrderError,
        errors.ReplicaError,
        errors.OutOfMemoryError,
        errors.GradientError,
    ]
)

_with_threads: int | None = None  # the process in which the runtime has threads


def has_threads() -> None:
    """To be called where the runtime has been given its first thread."""
    global _with_threads
    _with_threads = os.getpid()


def is_fork() -> bool:
    """Whether this is a forked child (a DataLoader's worker) of such a process: it has none of its threads, and must end
    none.
    """
    return _with_threads not in (None, os.getpid())


@atexit.register
def _end() -> None:
    """Ends the threads of the runtime; where an exception ends the process, the other ranks are told which."""
    if is_fork():
        return
    last = getattr(sys, "last_value", None)
    _C.shutdown("" if last is None else f"{type(last).__name__}: {last}")
