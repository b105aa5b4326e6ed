"""Ranks that die at a chosen exchange of save, load, fully_shard or profile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import Ending
from torch import nn

import osdp
from osdp.ranks.rank_group import Together
from support import plans


def die_at_exchange(n: int) -> None:
    """This process is killed when it is about to tell the others something for the n-th time from now on."""
    tell, count = Together.all, [0]

    def all_(self, value):
        count[0] += 1
        if count[0] > n:
            os.kill(os.getpid(), signal.SIGKILL)
        return tell(self, value)

    Together.all = all_


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def uniform(mode: str = "FULL_SHARD") -> osdp.Plan:
    return plans.apart(osdp.Plan.uniform(osdp.describe(tiny(), torch.randn(2, 8)), mode))


def shard(me: Member) -> Callable[[], object]:
    model, plan = tiny(), uniform()
    return lambda: osdp.fully_shard(model, plan, process_group=me.group)


def profile(me: Member) -> Callable[[], object]:
    return lambda: osdp.profile(group=me.group, seconds=0.2)


def save(me: Member, directory: str) -> Callable[[], object]:
    model = osdp.fully_shard(tiny(), uniform(), process_group=me.group)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    return lambda: osdp.save(model, optimizer, Path(directory) / "checkpoint")


def load(me: Member, directory: str) -> Callable[[], object]:
    model = osdp.fully_shard(tiny(), uniform(), process_group=me.group)
    optimizer = torch.optim.AdamW(model.parameters())
    osdp.save(model, optimizer, Path(directory) / "checkpoint")
    return lambda: osdp.load(model, optimizer, Path(directory) / "checkpoint")


def dies_in(
    me: Member, prepare: Callable[..., Callable[[], object]], n: int, *args: str
) -> tuple[str, str, float]:
    """What the phase raised on the ranks that live, its type, and after how long."""
    phase = prepare(me, *args)
    dist.barrier()
    if me.rank == me.world - 1:
        die_at_exchange(n)
    begin = time.monotonic()
    try:
        phase()
    except RuntimeError as error:
        return str(error), type(error).__name__, time.monotonic() - begin
    raise AssertionError("nothing was raised")


def judge(endings: list[Ending], phase: str, within_s: float) -> None:
    culprit = len(endings) - 1
    assert endings[culprit].signal in ("SIGKILL", "stuck"), endings[culprit]
    for rank, ending in enumerate(endings[:culprit]):
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kind, seconds = ending.result
        assert kind == "RankError", (kind, message)
        assert f"rank {culprit}" in message and phase in message, message
        assert seconds < within_s, (rank, seconds, message)
