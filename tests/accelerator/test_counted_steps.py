"""A step waits for the device no more often than torch's own sharding does, and takes no more operators; and that, the
control, has no race."""

from __future__ import annotations

import memory
import pytest
import run_ranks
from test_asynchronous_streams import judge

# The others are for `python run_ranks.py counted`, and a look by hand.
PAIRS = ["FULL_SHARD", "NO_SHARD", "bf16", "offload"]


@pytest.fixture(scope="module")
def counted() -> dict[str, list[dict]]:
    told = run_ranks.run_cases(
        [f"{who} {how}" for how in PAIRS for who in ("osdp", "torch")], "ordered:check"
    )
    judge(told, 1e-6)
    return told


@pytest.mark.parametrize("how", PAIRS)
def test_the_host_waits_no_more_often_than_under_torch(counted: dict[str, list[dict]], how: str) -> None:
    ours, theirs = (
        sum(counted[f"{who} {how}"][0]["counts"]["host_syncs"].values()) for who in ("osdp", "torch")
    )
    assert ours <= theirs


@pytest.mark.parametrize("how", PAIRS)
def test_a_step_takes_no_more_operators_than_under_torch(counted: dict[str, list[dict]], how: str) -> None:
    ours, theirs = (counted[f"{who} {how}"][0]["counts"] for who in ("osdp", "torch"))
    assert ours["operators"] <= theirs["operators"], (ours["streams"], theirs["streams"])


def test_clipping_waits_only_where_an_error_is_asked_for() -> None:
    """Beside the copy of the step's data from pageable memory, there is one wait, for the norm."""
    told = run_ranks.run_cases(["osdp FULL_SHARD", "osdp error asked for"], "ordered:check")
    judge(told, 1e-6)
    assert told["osdp FULL_SHARD"][0]["counts"]["host_syncs"] == {"copy from the host": 1}
    assert told["osdp error asked for"][0]["counts"]["host_syncs"] == {"copy from the host": 1, "item": 1}


def test_a_step_makes_no_event() -> None:
    (ours, _) = run_ranks.run_cases(["osdp SHARD_GRAD_OP"], "ordered:check")["osdp SHARD_GRAD_OP"]
    assert ours["counts"]["events"] == 0


def test_only_the_lane_and_the_stream_that_trains_work() -> None:
    """Gradients too are accumulated on the side stream on which the user trains, not where the model was made."""
    told = run_ranks.run_cases(["on_a_side_stream"], "ordered:check")
    judge(told, 1e-6)
    streams = told["on_a_side_stream"][0]["counts"]["streams"]
    assert sorted(each["urgent"] for each in streams.values()) == [False, True], (
        streams
    )  # the side stream, the lane


def test_half_loses_nothing_that_one_process_keeps() -> None:
    """The backend's average scales before it sums."""
    told = run_ranks.run_cases(["fp16_least_gradients"], "ordered:check")
    judge(told, 1e-6)
    assert set(told["fp16_least_gradients"][0]["losses"]) == {1.0}


def test_the_older_fsdp_has_no_race() -> None:
    judge(run_ranks.run_cases(["torch FSDP1"], "ordered:check"), 1e-6)


def test_columns_have_a_stream_of_their_own_and_no_memory() -> None:
    """HYBRID_SHARD: rows that wait for their column are two units' at most, in the memory that the first lane's had."""
    name = "memory HYBRID_SHARD"
    told = run_ranks.run_cases([name, "hybrid_accumulate"], "ordered:check", world=4)
    judge(told, 1e-6)
    counts = told[name][0]["counts"]
    assert sorted(each["urgent"] for each in counts["streams"].values()) == [False, True, True], counts
    pools = dict(counts["pools"])
    shard, small = memory.MATRIX // 2, 64 * 1024
    assert pools.pop("the default stream") <= 4 * memory.MATRIX + 2 * shard + small
    assert sum(pools.values()) <= small, pools


def test_full_size_tensors_come_from_the_pool_of_the_stream_that_computes() -> None:
    """Those in use and those arriving, gradients being made and one that leaves; with that a reduced shard, of this one
    and of the one before. The lane's own pool stays empty."""
    names = ["memory FULL_SHARD", "memory wide", "memory offload"]
    told = run_ranks.run_cases(names, "ordered:check")
    judge(told, 1e-6)
    small = 64 * 1024
    low, shard = memory.MATRIX // 2, memory.MATRIX // 2
    full = 4 * memory.MATRIX + 2 * shard
    most = {
        names[0]: full,
        names[1]: 4 * low + memory.MATRIX + 2 * shard,  # the gradient that leaves is there in fp32 too
        names[2]: full + 2 * shard,  # rows on their way to the device, and gradients that came from the host
    }
    for name in names:
        pools = dict(told[name][0]["counts"]["pools"])
        assert 2 * low < pools.pop("the default stream") <= most[name] + small, name
        assert sum(pools.values()) <= small, (name, pools)
