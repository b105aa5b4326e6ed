"""What is gathered and reduced lies in memory that the process group's backend allocates, if it is asked for."""

from __future__ import annotations

import memory
import pytest
import run_ranks
from test_asynchronous_streams import Told, in_order, judge

CASES = ["memory of the group", "memory of the group, GPT"]


@pytest.fixture(scope="module")
def told() -> Told:
    return run_ranks.run_cases(CASES, "ordered:check")


def test_what_travels_is_memory_of_the_group(told: Told) -> None:
    """The stream's own pool has the gradient that is being made, until it is copied; the group's has two gathered
    parameters, a gradient that leaves and two reduced shards."""
    judge(told, 1e-6)
    small, shard = 64 * 1024, memory.MATRIX // 2
    pools = dict(told[CASES[0]][0]["counts"]["pools"])
    (of_the_group,) = (name for name in pools if name.startswith("the default stream, memory of"))
    travels = pools.pop(of_the_group)
    assert 2 * memory.MATRIX < travels <= 3 * memory.MATRIX + 2 * shard + small
    assert pools.pop("the default stream") <= memory.MATRIX + small, pools
    assert sum(pools.values()) <= small, pools


def test_streams_that_run_late_change_no_bit(told: Told) -> None:
    (late,) = CASES[1:]
    found = run_ranks.run_cases([late], "ordered:async:3:300")
    in_order(found)
    assert [r["losses"] for r in found[late]] == [r["losses"] for r in told[late]]


def test_lines_that_have_memory_of_their_own(among_four: Told) -> None:
    name = "memory of the group, hybrid"
    judge({name: among_four[name]}, 1e-6)


def test_a_backend_without_memory_is_refused() -> None:
    for each in run_ranks.run_cases(CASES[:1], "ordered:check", ORDERED_NO_TENSOR_ALLOC="1")[CASES[0]]:
        assert each["error"].startswith("ProcessGroupError: "), each
        assert "backend 'ordered' cannot allocate tensors on ordered:0" in each["error"], each
