"""A memory limit that is worth a demonstration: under it the best plan is a true mixture."""

from __future__ import annotations

from typing import Any

import osdp

ROOMY = "1TiB"


def balance(plan: osdp.Plan) -> tuple[bool, int]:
    """Whether anything is in slices; and the parameter bytes in unsharded or in fully sharded operators, whichever are
    fewer."""
    size = {operator.name: operator.parameter_bytes for operator in plan.description.operators}
    fewer = min(
        sum(size[name] for name, choice in plan.choices.items() if choice.mode == mode)
        for mode in ("NO_SHARD", "FULL_SHARD")
    )
    return fewer > 0 and any(choice.granularity > 1 for choice in plan.choices.values()), fewer


def search_mixture(description: osdp.ModelDescription, **options: Any) -> osdp.Plan:
    """The best plan under a limit between the least memory that any plan needs and what the fastest plan takes.

    Of eight limits the one whose plan mixes most evenly. `options` are those of `osdp.search`.
    """
    try:
        osdp.search(description, memory=1, **options)
    except osdp.InfeasibleError as error:
        least = error.smallest_limit
    most = osdp.search(description, memory=ROOMY, **options).predicted.peak_memory_bytes
    limits = (least + (most - least) * percent // 100 for percent in range(10, 90, 10))
    return max((osdp.search(description, memory=limit, **options) for limit in limits), key=balance)
