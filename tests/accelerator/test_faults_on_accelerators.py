"""A rank that fails while the others' collectives are under way on their devices: they end with an error that names it, and
nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import run_ranks

WORLD = 2
Ends = Callable[..., list[str]]
# Case and device -> seconds of the process group's timeout; by far not reached where it is 300.
RUNS = {
    ("dies", "ordered:async:3"): 300,
    ("dies", "ordered:check"): 300,
    ("stays_away", "ordered:async:3"): 6,
    ("computes_for_ever", "ordered:async:3"): 6,
    ("runs_modules_in_another_order", "ordered:async:3"): 300,
}


@pytest.fixture(scope="module")
def told() -> Iterator[Ends]:
    """What each rank's case ended with. They all run at one time: they wait more than they compute."""

    def run(name: str, device: str, timeout_s: int) -> list[str]:
        ranks = run_ranks.run_cases([name], device, WORLD, timeout_s=100, FAULT_TIMEOUT_S=str(timeout_s))[
            name
        ]
        return [each.get("error", "(nothing)") for each in ranks]

    with ThreadPoolExecutor(len(RUNS)) as pool:
        runs = {each: pool.submit(run, *each, timeout_s) for each, timeout_s in RUNS.items()}
        yield lambda name, device="ordered:async:3": runs[name, device].result()


def test_a_rank_that_dies(told: Ends) -> None:
    first, last = told("dies")
    assert first.startswith("RankError") and "rank 1's process has ended" in first, first
    assert "did not come to its end" in last


def test_a_rank_that_dies_while_the_host_waits(told: Ends) -> None:
    """Streams that are the host's own: the wait is within the collective."""
    first, _ = told("dies", "ordered:check")
    assert first.startswith("RankError") and "rank 1's process has ended" in first, first


def test_a_rank_that_stays_away(told: Ends) -> None:
    first, _ = told("stays_away")
    assert first.startswith("RankError"), first
    assert "rank 1 did not arrive: it finished #" in first and "timeout is 6.0 s" in first, first


def test_a_device_that_does_not_come_to_a_collective(told: Ends) -> None:
    first, _ = told("computes_for_ever")
    assert first.startswith("RankError"), first
    assert "rank 1" in first and "its device has not reached the next" in first, first


def test_ranks_that_run_modules_in_another_order(told: Ends) -> None:
    for error in told("runs_modules_in_another_order"):
        assert error.startswith("OrderError") and "run different modules" in error, error
        assert "'blocks.1." in error and "'blocks.2." in error, error
