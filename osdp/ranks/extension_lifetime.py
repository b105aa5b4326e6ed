"""Lifetime of the extension osdp._C: its first use, and the end of the process."""

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

_with_threads: int | None = None  # id of the process in which the runtime has threads


def has_threads() -> None:
    """Called when the runtime has started its first thread."""
    global _with_threads
    _with_threads = os.getpid()


def is_fork() -> bool:
    """Whether this is a forked child (a DataLoader's worker) of such a process: it does not have the threads,
    and must not end them.
    """
    return _with_threads not in (None, os.getpid())


@atexit.register
def _end() -> None:
    """End the runtime's threads; if an exception ends the process, report it to the other ranks."""
    if is_fork():
        return
    last = getattr(sys, "last_value", None)
    _C.shutdown("" if last is None else f"{type(last).__name__}: {last}")
