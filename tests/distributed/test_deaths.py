"""A rank that dies outside of a step, or whose forked child outlives it: the others name it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import deaths
from support.faults import ACTS, PATIENT_S, SOON_S, TIMEOUT_S, Doomed, failed_step, step
from support.links import links_of
from support.plans import apart

import osdp


@pytest.mark.outcome("a rank dies in `fully_shard`, `profile`, `save` or `load`", osdp.RankError)
@pytest.mark.parametrize(
    ("phase", "exchange", "world"),
    [
        ("fully_shard", 0, 2),  # before the ranks have anything in common but the caller's group
        ("fully_shard", 1, 3),
        ("profile", 0, 3),
        ("profile", 3, 2),
        ("save", 0, 4),
        ("save", 4, 2),
        ("load", 0, 2),
    ],
)
def test_a_rank_that_dies_outside_of_a_step(tmp_path, phase: str, exchange: int, world: int) -> None:
    prepare = {"fully_shard": deaths.shard, **{n: getattr(deaths, n) for n in ("profile", "save", "load")}}
    args = (str(tmp_path),) if phase in ("save", "load") else ()
    endings = run_doomed(deaths.dies_in, prepare[phase], exchange, *args, world=world, timeout_s=TIMEOUT_S)
    deaths.judge(endings, f"osdp.{phase}", SOON_S)


def leaves_a_child(me: Member, link: str, stop_first: bool) -> tuple[str, list[str], float]:
    """The last rank has forked a worker, which holds what it inherited, and is killed in the middle of a forward."""
    model = Doomed()
    with links_of(link):
        plan = apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), "FULL_SHARD"))
        osdp.fully_shard(model, plan, process_group=me.group)
    for _ in range(3):
        step(model)
    dist.barrier()
    if me.rank == me.world - 1:
        if os.fork() == 0:
            time.sleep(2 * SOON_S)
            os._exit(0)
        if stop_first and os.fork() == 0:
            time.sleep(1.5)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(2 * SOON_S)
            os._exit(0)
        model.act = ACTS["stop" if stop_first else "kill"]
    return failed_step(model)


@pytest.mark.outcome("a rank dies, but a DataLoader worker that it forked stays alive", osdp.RankError)
@pytest.mark.parametrize(
    ("link", "world", "stop_first"),
    [("shared memory", 2, False), ("sockets", 3, False), ("gloo", 2, False), ("gloo", 3, True)],
)
def test_a_dead_rank_whose_child_lives_on(link: str, world: int, stop_first: bool) -> None:
    endings = run_doomed(leaves_a_child, link, stop_first, world=world, timeout_s=PATIENT_S, lost=1)
    for rank, ending in enumerate(endings[:-1]):
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        assert kinds[0] == "RankError" and f"rank {world - 1}" in message, message
        assert "process has ended" in message, message
        assert seconds < SOON_S, seconds
