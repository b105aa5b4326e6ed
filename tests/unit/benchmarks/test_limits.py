"""Limits of benchmarks/support/limits.py: there is a plan under each, also where the fastest is the smallest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import osdp
from osdp.errors import InfeasibleError
from tests.unit.gpt_descriptions import gpt, machine


@pytest.fixture
def least_and_most(benchmarks_first: None) -> Iterator[Callable[..., tuple[int, int]]]:
    from support.limits import least_and_most

    yield least_and_most


@pytest.mark.parametrize("modes", ["FULL_SHARD", "NO_SHARD", "auto"])
def test_there_is_a_plan_under_every_limit(
    least_and_most: Callable[..., tuple[int, int]], modes: str
) -> None:
    arguments: dict[str, Any] = {
        "hardware": machine(2),
        "world_size": 2,
        "batch_size": 1,
        "checkpoint": False,
        "granularity": (),
        "modes": modes,
    }
    description = gpt(2, 128)
    least, most = least_and_most(description, **arguments)
    assert most >= least
    for i in range(4):
        limit = least + (most - least) * i // 3
        assert osdp.search(description, memory=limit, **arguments).memory_limit_bytes == limit


def test_the_smallest_limit_that_an_error_names_is_one_of_a_plan_that_is_found_again(
    benchmarks_first: None,
) -> None:
    """Here searches under lower limits find a plan of a smaller peak, which a search under the limit that it
    just keeps misses."""
    from planner import transformer

    description = transformer([3072] * 3 + [4096] * 3, 512, 1000)
    arguments: dict[str, Any] = {"hardware": "h200-2x8", "world_size": 2, "hosts": 1, "batch_size": 16}
    with pytest.raises(InfeasibleError) as e:
        osdp.search(description, memory=0, **arguments)
    assert e.value.smallest_limit is not None
    assert osdp.search(description, memory=e.value.smallest_limit, **arguments)
