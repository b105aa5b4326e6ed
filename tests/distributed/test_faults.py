"""A rank that dies, hangs or raises: the others end with a typed error that names it, soon after the timeout."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import Ending, run_doomed
from support import plans
from torch import nn

import osdp

TIMEOUT_S = 2.0
# Ranks of a busy machine may begin to wait later than the fault happens.
SLACK_S = 2.5


class Wrong(Exception):
    pass


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.act()
        return gradient, None


class Doomed(nn.Module):
    """`act` is called in the middle of the next pass, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.act = None
        self.where = "forward"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            if i == 2 and self.act is not None:
                if self.where == "forward":
                    self.act()
                else:
                    x = FailsBackward.apply(x, self.act)
            x = layer(x).tanh()
        return x


def wrong() -> None:
    raise Wrong("the third batch is bad")


ACTS = {
    "exit": lambda: os._exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(120),
    "raise": wrong,
}


def sharded(me: Member, mode: str) -> nn.Module:
    torch.manual_seed(0)
    model = Doomed()
    plan = plans.apart(osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), mode))
    dist.barrier()  # ranks start at different times; the group's timeout is short
    return osdp.fully_shard(model, plan, process_group=me.group)


def step(model: nn.Module) -> None:
    model(torch.randn(2, 8)).sum().backward()
    model.zero_grad()


def failed_step(model: nn.Module) -> tuple[str, list[str], float]:
    """What a step raised, its types, and after how long."""
    begin = time.monotonic()
    try:
        step(model)
    except osdp.OSDPError as error:
        return str(error), [kind.__name__ for kind in type(error).__mro__], time.monotonic() - begin
    raise AssertionError("nothing was raised")


def suffer(me: Member, act: str, where: str, mode: str) -> tuple[str, list[str], float]:
    """Good steps (replicas are compared in the first three), then the last rank acts; what the others' step raised."""
    model = sharded(me, mode)
    for _ in range(3):
        step(model)
    if me.rank == me.world - 1:
        model.act, model.where = ACTS[act], where
    return failed_step(model)


def judge(endings: list[Ending], culprit: int) -> list[str]:
    messages = []
    for rank, ending in enumerate(endings):
        if rank == culprit:
            continue
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        assert kinds[0] == "RankError", (kinds, message)
        assert f"rank {culprit}" in message, message
        assert f"Rank {rank} waits at #" in message or f"Rank {rank} has done #" in message, message
        assert "'layers." in message and ("in forward of" in message or "in backward of" in message), message
        assert seconds < TIMEOUT_S + SLACK_S, seconds
        messages.append(message)
    return messages


@pytest.mark.parametrize(("act", "where"), [("kill", "forward"), ("exit", "backward")])
def test_a_rank_that_dies(act, where):
    world = 4 if act == "kill" else 2  # in the ring of 4, one rank is no neighbour of the dead one
    endings = run_doomed(suffer, act, where, "FULL_SHARD", world=world, timeout_s=TIMEOUT_S)
    assert endings[-1].signal == ("SIGKILL" if act == "kill" else "exit")
    for message in judge(endings, world - 1):
        assert "process has ended" in message


@pytest.mark.parametrize(("where", "mode"), [("backward", "NO_SHARD")])
def test_a_rank_that_is_stopped(where, mode):
    endings = run_doomed(suffer, "stop", where, mode, world=3, timeout_s=TIMEOUT_S)
    for message in judge(endings, 2):
        assert "no sign of life" in message and "timeout is 2.0 s" in message


@pytest.mark.parametrize("where", ["forward"])
def test_a_rank_that_hangs_but_lives(where):
    endings = run_doomed(suffer, "sleep", where, "FULL_SHARD", world=3, timeout_s=TIMEOUT_S, lost=1)
    for message in judge(endings, 2):
        assert "hangs, though its process lives" in message
        assert "asked for nothing since, in forward of the model" in message


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_raises_and_goes_no_further(where):
    endings = run_doomed(suffer, "raise", where, "SHARD_GRAD_OP", world=3, timeout_s=TIMEOUT_S)
    assert endings[2].kinds[0] == "Wrong"
    for message in judge(endings, 2):
        assert "rank 2 ended a forward or backward with" in message and "the third batch is bad" in message


# --- a rank that goes another way


class Branching(nn.Module):
    """Runs the branch it is told to, between two layers that all ranks run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right, self.last = (nn.Linear(8, 8) for _ in range(4))
        self.branch = "left and right"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if "left" in self.branch:
            x = self.left(x)
        if "right" in self.branch:
            x = self.right(x)
        return self.last(x)


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
    for ending in run_doomed(diverge, mode, world=world, timeout_s=20.0):
        assert ending.error is None and ending.signal is None, ending
        message, kinds, seconds = ending.result
        assert kinds[:2] == ["OrderError", "DisagreementError"], message
        assert "rank 1 waits at #" in message and "'right " in message, message
        assert re.search(r"rank 0(, rank 2)? waits at #\d+ '(left|last|first) ", message), message
        assert seconds < 6, seconds
