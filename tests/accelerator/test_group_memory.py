"""What is gathered and reduced lies in memory that the process group's backend allocates, if it is asked for."""

from __future__ import annotations

import memory
import run_ranks
from test_asynchronous_streams import in_order, judge

CASES = ["memory of the group", "memory of the group, GPT"]


def test_what_travels_is_memory_of_the_group() -> None:
    """The stream's own pool has the gradients that are being made and the one that is copied; the group's has two gathered
    parameters, a gradient that leaves and two reduced shards."""
    told = run_ranks.run_cases(CASES, "ordered:check")
    judge(told, 1e-6)
    small, shard = 64 * 1024, memory.MATRIX // 2
    pools = dict(told[CASES[0]][0]["counts"]["pools"])
    (of_the_group,) = (name for name in pools if name.startswith("the default stream, memory of"))
    travels = pools.pop(of_the_group)
    assert 2 * memory.MATRIX < travels <= 3 * memory.MATRIX + 2 * shard + small
    assert pools.pop("the default stream") <= 2 * memory.MATRIX + small, pools
    assert sum(pools.values()) <= small, pools


def test_streams_that_run_late_change_no_bit() -> None:
    at_once = run_ranks.run_cases(CASES[1:], "ordered:check")
    late = run_ranks.run_cases(CASES[1:], "ordered:async:3:300")
    judge(at_once, 1e-6)
    in_order(late)
    for right, told in zip(at_once.values(), late.values(), strict=True):
        assert [r["losses"] for r in told] == [r["losses"] for r in right]


def test_lines_that_have_memory_of_their_own() -> None:
    judge(run_ranks.run_cases(["memory of the group, hybrid"], "ordered:check", world=4), 1e-6)


def test_a_backend_without_memory_is_refused() -> None:
    for each in run_ranks.run_cases(CASES[:1], "ordered:check", ORDERED_NO_TENSOR_ALLOC="1")[CASES[0]]:
        assert each["error"].startswith("ProcessGroupError: "), each
        assert "backend 'ordered' allocates no tensors on ordered:0" in each["error"], each
