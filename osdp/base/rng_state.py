"""Restores random number generators."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def generators_kept(device: torch.device | None = None) -> Iterator[None]:
    """Context that afterwards restores Python's, NumPy's (if loaded) and torch's generators (CPU's and
    `device`'s).
    """
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    kind = "cpu" if device is None or device.type == "meta" else device.type
    index = device.index or 0 if device is not None else 0
    with torch.random.fork_rng(
        [] if kind == "cpu" else [index], device_type="cuda" if kind == "cpu" else kind
    ):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)
