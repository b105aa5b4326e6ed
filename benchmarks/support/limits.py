"""Between which memory limits a search has something to decide."""

from __future__ import annotations

from typing import Any

import osdp


def least_and_most(description: osdp.ModelDescription, **arguments: Any) -> tuple[int, int]:
    """The least limit under which there is a plan, and the least for the fastest plan. `arguments`: of osdp.search."""
    try:
        osdp.search(description, memory=1, **arguments)
        raise AssertionError("a plan fits one byte")
    except osdp.InfeasibleError as error:
        least = error.smallest_limit
    fastest = osdp.search(description, memory="1TiB", **arguments)
    assert least is not None and fastest.predicted is not None
    return least, max(least, limit_of(fastest.predicted.peak_memory_bytes))


def limit_of(peak_bytes: int) -> int:
    """The least limit that a plan with this peak keeps: a search leaves a hundredth of the limit free."""
    return peak_bytes + (peak_bytes - 1) // 99
