"""Collectives that are not waited for, and what they and computation cost each other."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import Member

from osdp import _C
from osdp.profiling.machine_speed import lane_collectives
from osdp.profiling.overlap import measure_contention

CPU = torch.device("cpu")


def goes_on_meanwhile(me: Member, submitted: Path) -> None:
    """The last rank comes when the other has submitted, which is not held up until it waits."""
    ours = lane_collectives(CPU, me.group)
    ours.all_reduce_mean([torch.zeros(1)])
    dist.barrier(me.group)
    tensor = torch.full((1000,), float(me.rank))
    if me.rank == 1:
        while not submitted.exists():
            time.sleep(0.05)
        time.sleep(0.2)
    ticket = ours.submit_all_reduce_mean([tensor])
    assert isinstance(ticket, _C.Work)
    if me.rank == 0:
        assert not ticket.done and ticket.seconds == 0
        submitted.touch()
    ticket.wait()
    assert ticket.done and ticket.seconds > 0
    if me.rank == 0:
        assert ticket.seconds > 0.1  # it waited for the one who slept
    assert torch.equal(tensor, torch.full((1000,), (me.world - 1) / 2))


def same_everywhere(me: Member) -> tuple[float, float, float]:
    steps = []

    def step() -> None:
        steps.append(time.perf_counter())
        matrix = torch.ones(64, 64)
        while time.perf_counter() < steps[-1] + 0.01:
            torch.mm(matrix, matrix)

    found = measure_contention(CPU, me.group, me.world, me.world, 0.1, step)
    assert len(steps) >= 4
    assert found.delay.alpha_s >= 0 and found.delay.beta_s_per_byte >= 0
    assert 0 <= found.stolen < 10 and found.exposed >= 1
    return found.delay.alpha_s, found.delay.beta_s_per_byte, found.stolen


def test_a_collective_does_not_hold_up_who_submits_it(ranks, tmp_path: Path) -> None:
    ranks(goes_on_meanwhile, tmp_path / "submitted", world=2)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_measure_the_same_contention(ranks, world: int) -> None:
    assert len(set(ranks(same_everywhere, world=world))) == 1
