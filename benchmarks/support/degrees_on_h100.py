"""A search for all degrees on hosts of eight H100, timed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import osdp

HARDWARE, PER_HOST = "h100-2x8", 8


def searched(
    description: osdp.ModelDescription, ranks: int, samples: int, styles: Mapping[str, str], **options: Any
) -> tuple[osdp.ParallelPlan, float]:
    """The plan for `samples` a step in mixed precision, and the seconds of this process that its search took."""
    began = time.process_time()  # of one thread; other processes do not count
    plan = osdp.search(
        description,
        world_size=ranks,
        hosts=ranks // PER_HOST,
        hardware=HARDWARE,
        precision="bf16-reduce-fp32",
        global_batch_size=samples,
        tensor_parallel="auto",
        pipeline_parallel="auto",
        tp_plan=styles,
        **options,
    )
    assert isinstance(plan, osdp.ParallelPlan)
    return plan, time.process_time() - began


def degrees_of(plan: osdp.ParallelPlan) -> list[int]:
    return [plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel]
