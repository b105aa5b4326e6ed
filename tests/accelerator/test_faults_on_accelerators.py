"""A rank that fails while the others' collectives are under way on their devices: they end with an error that names it, and
nothing waits for ever."""

from __future__ import annotations

import run_ranks

WORLD = 2


def told(name: str, device: str = "ordered:async:3", timeout_s: float = 300) -> list[str]:
    """What each rank's case ended with. `timeout_s`: the process group's; by far not reached unless given."""
    ranks = run_ranks.run_cases([name], device, WORLD, timeout_s=100, FAULT_TIMEOUT_S=str(timeout_s))[name]
    return [each.get("error", "(nothing)") for each in ranks]


def test_a_rank_that_dies() -> None:
    first, last = told("dies")
    assert first.startswith("RankError") and "rank 1's process has ended" in first, first
    assert "did not come to its end" in last


def test_a_rank_that_dies_while_the_host_waits() -> None:
    """Streams that are the host's own: the wait is within the collective."""
    first, _ = told("dies", "ordered:check")
    assert first.startswith("RankError") and "rank 1's process has ended" in first, first


def test_a_rank_that_stays_away() -> None:
    first, _ = told("stays_away", timeout_s=5)
    assert first.startswith("RankError"), first
    assert "rank 1 does not come: it has done #" in first and "timeout is 5.0 s" in first, first


def test_a_device_that_does_not_come_to_a_collective() -> None:
    first, _ = told("computes_for_ever", timeout_s=5)
    assert first.startswith("RankError"), first
    assert "rank 1" in first and "its device has not come to the next" in first, first


def test_ranks_that_run_modules_in_another_order() -> None:
    for error in told("runs_modules_in_another_order"):
        assert error.startswith("OrderError") and "run different modules" in error, error
        assert "'blocks.1." in error and "'blocks.2." in error, error
