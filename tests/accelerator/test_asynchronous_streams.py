"""Training on a device whose streams are asynchronous: every access is ordered, and the numbers are the CPU's."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import run_ranks
from cases import AMONG_FOUR, REDUCTIONS

Told = dict[str, list[dict[str, Any]]]


def in_order(told: Told) -> None:
    for name, ranks in told.items():
        for rank, each in enumerate(ranks):
            assert "error" not in each, f"{name}, rank {rank}: {each['error']}\n{each['trace']}"
            assert each["races"] == 0, f"{name}, rank {rank}:\n" + "\n".join(each["found"])


def judge(told: Told, tolerance: float) -> None:
    """16 bits differ on the device in the last of them: attention is taken apart there."""
    in_order(told)
    for name, ranks in told.items():
        assert run_ranks.distance(ranks) <= tolerance * (1e3 if "16" in name else 1), name


def test_every_access_waits_for_those_before(checked: Told) -> None:
    judge(checked, 1e-6)


def test_so_it_is_among_four_ranks(among_four: Told) -> None:
    judge({name: among_four[name] for name in AMONG_FOUR}, 1e-6)


# The checker decides what is ordered; that late streams change no bit is for those who doubt it (README.md).
@pytest.mark.extras
def test_streams_that_run_late_change_no_bit(checked: Told, delayed: Future[Told]) -> None:
    late = delayed.result()
    in_order(late)
    for name, ranks in late.items():
        assert [r["losses"] for r in ranks] == [r["losses"] for r in checked[name]], name


@pytest.mark.extras
def test_so_it_is_with_reductions_on_a_lane_of_their_own(
    checked: Told, delayed_reductions: Future[Told]
) -> None:
    late = delayed_reductions.result()
    in_order(late)
    for name, ranks in late.items():
        assert [r["losses"] for r in ranks] == [r["losses"] for r in checked[name]], name


def test_reductions_on_a_lane_of_their_own(checked: Told) -> None:
    apart = run_ranks.run_cases(REDUCTIONS, "ordered:check", timeout_s=900, SEPARATE_REDUCTIONS="1")
    judge(apart, 1e-6)
    for name, ranks in apart.items():
        assert [r["losses"] for r in ranks] == [r["losses"] for r in checked[name]], name
    for told, together in ((checked, True), (apart, False)):
        streams = [stream["operators"] for stream in told["full_shard"][0]["streams"].values()]
        (reducing,) = (operators for operators in streams if "reduce-scatter" in operators)
        assert ("all-gather" in reducing) == together


def test_one_rank_that_shards_alone() -> None:
    """What a machine with one accelerator can run of its backend."""
    judge(run_ranks.run_cases(["full_shard"], "ordered:check", world=1, OSDP_SHARD_ALONE="1"), 1e-6)


def test_one_rank_that_offloads() -> None:
    judge(run_ranks.run_cases(["offloaded"], "ordered:check", world=1), 1e-6)


def test_a_unit_takes_one_launch_however_many_tensors_it_has() -> None:
    told = run_ranks.run_cases(["unit_of_one", "unit_of_three"], "ordered:check")
    judge(told, 1e-6)
    one, three = (told[name][0]["collectives"] for name in ("unit_of_one", "unit_of_three"))
    assert three - one == 2 * 3  # rank 0's values of two more parameters, in each mode; nothing in a step


def test_a_missing_wait_is_reported() -> None:
    """The device's own control: without it, no races may mean that it is blind."""
    (each,) = run_ranks.run_cases(["without_a_wait"], "ordered:check", world=1)["without_a_wait"]
    assert each["races"] == 1, each
    assert "read by aten::sum on stream" in each["found"][0], each
    assert "does not wait for the write by aten::fill_ on the default stream" in each["found"][0], each


def test_a_host_that_does_not_wait_is_reported() -> None:
    (each,) = run_ranks.run_cases(["host_does_not_wait"], "ordered:check", world=1)["host_does_not_wait"]
    assert "error" not in each and len(each["found"]) == 2, each
    said = " and ".join(each["found"])
    assert "the host's read by aten::sum does not wait for the write by copy_" in said, each
    assert "the host's write by aten::add_ does not wait for the read by copy_" in said, each
