"""Keeps out of a trace what DTensor computes to find the layouts of results.

For each new call DTensor runs the operator once on fake tensors of the whole shapes. Under the modes that record a
trace that would count as another computation, of the whole operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def layouts_unseen() -> Iterator[None]:
    loaded = sys.modules.get("torch.distributed.tensor")
    propagator: Any = getattr(
        getattr(getattr(loaded, "DTensor", None), "_op_dispatcher", None), "sharding_propagator", None
    )
    found = getattr(propagator, "_propagate_tensor_meta_non_cached", None)  # private to torch
    if found is None:
        yield
        return

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return found(*args, **kwargs)

    propagator._propagate_tensor_meta_non_cached = unseen
    try:
        yield
    finally:
        del propagator._propagate_tensor_meta_non_cached
