"""A rank that dies, hangs or raises: the others end with a typed error that names it, soon after the timeout."""

from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import run_doomed
from support import plans
from support.faults import ACTS, PATIENT_S, SOON_S, TIMEOUT_S, Branching, Doomed, failed_step, judge, step
from torch import nn

import osdp


def sharded(me: Member, mode: str) -> nn.Module:
    torch.manual_seed(0)
    model = Doomed()
    plan = plans.apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), mode))
    dist.barrier()  # ranks start at different times; the group's timeout is short
    return osdp.fully_shard(model, plan, process_group=me.group)


def suffer(me: Member, act: str, where: str, mode: str) -> tuple[str, list[str], float]:
    """Good steps (replicas are compared in the first three), then the last rank acts; what the others' step raised."""
    model = sharded(me, mode)
    for _ in range(3):
        step(model)
    if act in ("kill", "exit"):
        # Long enough for every rank to tell where it is, and none has asked yet: what a death finds after a pause.
        time.sleep(0.6)
    if me.rank == me.world - 1:
        model.act, model.where = ACTS[act], where
    return failed_step(model)


@pytest.mark.parametrize(("act", "where"), [("kill", "forward"), ("exit", "backward")])
def test_a_rank_that_dies(act, where):
    world = 4 if act == "kill" else 2  # in the ring of 4, one rank is no neighbour of the dead one
    endings = run_doomed(suffer, act, where, "FULL_SHARD", world=world, timeout_s=PATIENT_S)
    assert endings[-1].signal == ("SIGKILL" if act == "kill" else "exit")
    for message in judge(endings, world - 1):
        assert "process has ended" in message


@pytest.mark.parametrize(("where", "mode"), [("backward", "NO_SHARD")])
def test_a_rank_that_is_stopped(where, mode):
    endings = run_doomed(suffer, "stop", where, mode, world=3, timeout_s=TIMEOUT_S)
    for message in judge(endings, 2):
        assert "does not respond" in message and f"timeout is {TIMEOUT_S} s" in message


@pytest.mark.parametrize("where", ["forward"])
def test_a_rank_that_hangs_but_lives(where):
    endings = run_doomed(suffer, "sleep", where, "FULL_SHARD", world=3, timeout_s=TIMEOUT_S, lost=1)
    for message in judge(endings, 2):
        assert "hangs, although its process is alive" in message
        assert "has requested nothing since, in forward of the model" in message


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_raises_and_goes_no_further(where):
    endings = run_doomed(suffer, "raise", where, "SHARD_GRAD_OP", world=3, timeout_s=TIMEOUT_S)
    assert endings[2].kinds[0] == "Wrong"
    for message in judge(endings, 2):
        assert "rank 2 ended a forward or backward with" in message and "the third batch is bad" in message


# --- a rank that goes another way


def diverge(me: Member, mode: str) -> tuple[str, list[str], float]:
    torch.manual_seed(0)
    model = Branching()
    plan = plans.apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), mode))
    dist.barrier()
    osdp.fully_shard(model, plan, process_group=me.group)
    for branch in ("left", "right", "left"):  # together it may change from step to step
        model.branch = branch
        step(model)
    if me.rank == 1:
        model.branch = "right"
    return failed_step(model)


@pytest.mark.parametrize(("mode", "world"), [("FULL_SHARD", 2), ("NO_SHARD", 3)])
def test_ranks_that_run_different_modules(mode, world):
    """No hang, and no bytes of one unit in another: every rank names both ways, long before the timeout."""
    for ending in run_doomed(diverge, mode, world=world, timeout_s=PATIENT_S):
        assert ending.error is None and ending.signal is None, ending
        message, kinds, seconds = ending.result
        assert kinds[:2] == ["OrderError", "DisagreementError"], message
        assert "rank 1 waits at #" in message and "'right " in message, message
        assert re.search(r"rank 0(, rank 2)? waits at #\d+ '(left|last|first) ", message), message
        assert seconds < SOON_S, seconds
