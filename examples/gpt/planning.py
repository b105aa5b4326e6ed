"""A memory limit that is worth a demonstration: under it the best plan is a true mixture."""

from __future__ import annotations

from typing import Any

import osdp

ROOMY = "1TiB"


def is_mixture(plan: osdp.Plan) -> bool:
    """Some operators unsharded, some sharded, and at least one computed in slices."""
    modes = {choice.mode for choice in plan.choices.values()}
    return {"NO_SHARD", "FULL_SHARD"} <= modes and any(c.granularity > 1 for c in plan.choices.values())


def search_mixture(description: osdp.ModelDescription, **options: Any) -> osdp.Plan:
    """The best plan under a limit between the least memory that any plan needs and what the fastest plan takes.

    The limits are tried from the middle outwards; each search takes milliseconds. Options are those of `osdp.search`.
    """
    try:
        osdp.search(description, memory=1, **options)
    except osdp.InfeasibleError as error:
        least = error.smallest_limit
    assert least is not None
    fastest = osdp.search(description, memory=ROOMY, **options)
    assert fastest.predicted is not None
    most = fastest.predicted.peak_memory_bytes
    for percent in sorted(range(5, 100, 5), key=lambda p: abs(p - 50)):
        plan = osdp.search(description, memory=least + (most - least) * percent // 100, **options)
        if is_mixture(plan):
            return plan
    raise SystemExit(
        f"no limit between {least} and {most} bytes makes the best plan a mixture of modes and slices"
    )
