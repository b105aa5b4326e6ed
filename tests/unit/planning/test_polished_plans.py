"""Plans that were played: no part of the search space has one that plays faster beyond the gap."""

from __future__ import annotations

import dataclasses

import pytest

import osdp
from osdp.hardware.hardware import Collective, Hardware
from osdp.plan.plan import Plan
from osdp.planning.verify import verify
from tests.unit.gpt_descriptions import gpt, machine

# Computation hides nearly all communication, and the other way round.
HIDING = machine(8, flops_per_s=1e12)
HIDDEN = machine(8, flops_per_s=1e15)


def searched(hardware: Hardware, memory: str = "24MiB", **arguments: object) -> Plan:
    return osdp.search(
        gpt(4, 256), memory=memory, world_size=8, hardware=hardware, **{"batch_size": 2, **arguments}
    )


@pytest.mark.parametrize(
    ("hardware", "memory"), [(HIDING, "18MiB"), (HIDDEN, "18MiB"), (HIDDEN, "24MiB"), (HIDING, "40MiB")]
)
def test_no_part_of_the_space_has_a_plan_below_the_bound(hardware: Hardware, memory: str) -> None:
    plan = searched(hardware, memory)
    assert verify(plan) == ""
    assert plan.certificate is not None and 0 <= plan.certificate.gap <= plan.certificate.checked_gap < 1
    for part in ({"modes": "FULL_SHARD"}, {"checkpoint": False}, {"granularity": 1}):
        try:
            other = searched(hardware, memory, **part)
        except osdp.InfeasibleError:
            continue
        assert other.certificate.step_ps >= plan.certificate.step_bound_ps
        assert plan.predicted.throughput >= other.predicted.throughput * (1 - plan.certificate.gap)
    assert searched(hardware, memory) == plan  # no clock decides


# A collective takes its latency and little else: who joins whom decides, which no sum over operators tells.
LATENT = dataclasses.replace(
    HIDDEN,
    all_gather=Collective(1e-3, 1e-11),
    reduce_scatter=Collective(1e-3, 1e-11),
    all_reduce=Collective(1e-3, 1e-11),
)


@pytest.mark.parametrize("memory", ["17MiB", "20MiB"])
def test_no_smaller_space_has_a_plan_that_plays_faster_where_neighbours_share_latencies(memory: str) -> None:
    plan = searched(LATENT, memory)
    assert verify(plan) == ""
    for smaller in ({"modes": "FULL_SHARD", "granularity": 1}, {"checkpoint": False}, {"granularity": 1}):
        try:
            alone = searched(LATENT, memory, **smaller)
        except osdp.InfeasibleError:
            continue
        assert plan.predicted.throughput >= alone.predicted.throughput * 0.99
