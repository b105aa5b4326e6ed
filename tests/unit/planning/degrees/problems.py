"""Small problems of degrees."""

from __future__ import annotations

from typing import Any

import osdp
from osdp.description.model_description import ModelDescription
from osdp.hardware.hardware import Collective, DeviceMemory, Hardware
from tests.unit.gpt_descriptions import gpt, machine

STYLES = {
    "h.*.attn.qkv": "colwise",
    "h.*.attn.proj": "rowwise",
    "h.*.mlp.fc": "colwise",
    "h.*.mlp.proj": "rowwise",
}


def hosts_machine(ranks: int = 8, **changes: Any) -> Hardware:
    """Links between hosts are slow."""
    return machine(
        ranks, between_hosts=Collective(1e-4, 2e-9), device_memory=DeviceMemory(0, 1024), **changes
    )


def searched(description: ModelDescription | None = None, **asked: Any) -> osdp.ParallelPlan:
    options: dict[str, Any] = {
        "memory": "4MiB",
        "world_size": 8,
        "hardware": hosts_machine(),
        "global_batch_size": 16,
        "tensor_parallel": "auto",
        "pipeline_parallel": "auto",
        "tp_plan": STYLES,
        "granularity": 1,
        "gap": 0.3,  # local search is not what these tests are about
        **asked,
    }
    found = osdp.search(description or gpt(4, 64), **options)
    assert isinstance(found, osdp.ParallelPlan)
    return found
