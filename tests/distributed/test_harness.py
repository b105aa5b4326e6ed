"""The harness itself: results, errors and hangs are reported, and the next case runs."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from harness import CaseFailure, Member


def sums(me: Member, scale: int) -> tuple[int, float, float]:
    total = torch.tensor([float(me.rank + 1)]) * scale
    dist.all_reduce(total, group=me.group)
    return me.rank, total.item(), torch.rand(()).item()


def raises_on_rank_1(me: Member) -> None:
    if me.rank == 1:
        raise KeyError("lost")
    dist.barrier(group=me.group)


def waits_for_a_rank_that_never_comes(me: Member) -> None:
    if me.rank != 0:
        dist.barrier(group=me.group)
    else:
        print("rank 0 sleeps", flush=True)
        time.sleep(600)


def dies_on_rank_0(me: Member) -> None:
    if me.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_case_runs_on_that_many_ranks_with_one_seed(ranks, world):
    results = ranks(sums, 10, world=world)
    assert [r[0] for r in results] == list(range(world))
    assert {r[1] for r in results} == {10.0 * world * (world + 1) / 2}
    assert len({r[2] for r in results}) == 1
    assert ranks(sums, 10, world=world) == results


def test_an_error_on_one_rank_names_it_and_shows_where_the_others_wait(ranks):
    with pytest.raises(CaseFailure) as failure:
        ranks(raises_on_rank_1, world=2)
    message = str(failure.value)
    assert "rank 1: KeyError: 'lost'" in message
    assert "in raises_on_rank_1" in message
    assert "rank 0: still running" in message
    assert len(ranks(sums, 1, world=2)) == 2  # the next case runs


def test_a_hang_is_reported_with_the_stack_of_every_rank(ranks):
    ranks(sums, 1, world=3)
    with pytest.raises(CaseFailure, match=r"did not finish in 5 s") as failure:
        ranks(waits_for_a_rank_that_never_comes, world=3, timeout_s=5.0)
    message = str(failure.value)
    assert message.count("in waits_for_a_rank_that_never_comes") == 3
    assert message.count("in barrier") == 2
    assert "rank 0 sleeps" in message
    assert len(ranks(sums, 1, world=3)) == 3


def test_a_rank_that_dies_is_reported_with_its_signal(ranks):
    with pytest.raises(CaseFailure, match=r"rank 0: the process ended \(SIGKILL\)"):
        ranks(dies_on_rank_0, world=2)
    assert len(ranks(sums, 1, world=4)) == 4


def makes_a_group(me: Member) -> int:
    """A group of all ranks of the case, called by their count of groups, as torch calls it."""
    group = dist.new_group(list(range(me.world)))
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    return int(total)


def test_a_case_on_fewer_ranks_may_make_groups_of_its_own(ranks):
    assert ranks(makes_a_group, world=2) == [2] * 2
    assert ranks(makes_a_group, world=4, timeout_s=60) == [4] * 4
