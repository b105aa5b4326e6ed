"""One rank has nobody to share with, but it may offload."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import osdp

BOTH = ("NO_SHARD", "FULL_SHARD_OFFLOAD")


@pytest.fixture(scope="module")
def description() -> osdp.ModelDescription:
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(6)]
    with torch.device("meta"):
        return osdp.describe(nn.Sequential(*layers), torch.zeros(8, 1024))


def search(
    description: osdp.ModelDescription, memory: str | int, *modes: str, granularity: int | str = 1
) -> osdp.Plan:
    return osdp.search(
        description,
        memory=memory,
        hardware="h100-8",
        world_size=1,
        batch_size=8,
        modes=modes,
        gap=0,
        granularity=granularity,
    )


def test_it_offloads_what_does_not_fit(description: osdp.ModelDescription) -> None:
    whole, away = search(description, "1GiB", "NO_SHARD"), search(description, "1GiB", "FULL_SHARD_OFFLOAD")
    assert whole.predicted and away.predicted
    assert away.predicted.peak_memory_bytes < whole.predicted.peak_memory_bytes
    assert away.predicted.step_time_s > whole.predicted.step_time_s
    limit = (whole.predicted.peak_memory_bytes + away.predicted.peak_memory_bytes) // 2
    some = search(description, limit, *BOTH)
    osdp.verify(some)
    assert some.predicted and some.predicted.peak_memory_bytes <= limit
    assert {choice.mode for choice in some.choices.values()} == set(BOTH)
    assert whole.predicted.step_time_s < some.predicted.step_time_s < away.predicted.step_time_s


def test_slices_come_from_the_host_where_whole_weights_do_not_fit(
    description: osdp.ModelDescription,
) -> None:
    with pytest.raises(osdp.InfeasibleError):
        search(description, "630MiB", *BOTH)
    plan = search(description, "630MiB", *BOTH, granularity="auto")
    osdp.verify(plan)
    assert plan.predicted and plan.predicted.peak_memory_bytes <= 630 * 2**20
    sliced = [choice for choice in plan.choices.values() if choice.granularity > 1]
    assert sliced and all(c.traits.on_host and c.slices_sharded == c.granularity for c in sliced)


def test_where_all_fits_nothing_is_offloaded(description: osdp.ModelDescription) -> None:
    plan = search(description, "2GiB", *BOTH)
    assert {choice.mode for choice in plan.choices.values()} == {"NO_SHARD"}


def test_modes_that_shard_are_no_shard(description: osdp.ModelDescription) -> None:
    plan = search(description, "2GiB", "FULL_SHARD", "FULL_SHARD_OFFLOAD")
    assert {choice.mode for choice in plan.choices.values()} == {"NO_SHARD"}


def test_infeasible_names_the_mode(description: osdp.ModelDescription) -> None:
    with pytest.raises(osdp.InfeasibleError, match=r"modes=\('NO_SHARD', 'FULL_SHARD_OFFLOAD'\)"):
        search(description, "630MiB", "NO_SHARD")
    with pytest.raises(osdp.InfeasibleError, match=r"all FULL_SHARD_OFFLOAD$"):
        search(description, "630MiB", "FULL_SHARD_OFFLOAD")
