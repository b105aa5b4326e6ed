"""Ctrl-C while a rank waits for another, and memory that runs out: an error on every rank, at once, never a hang."""

from __future__ import annotations

import os
import re
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import Member
from harness.doomed import Ending, run_doomed
from support import plans
from torch import nn

import osdp

TIMEOUT_S = 20.0  # of the process group: no error here may wait for it
LATE_S = 1.5
SOON_S = 2.5  # after which an error must have come, on a busy machine


def step(model: nn.Module, width: int = 8) -> None:
    model(torch.randn(2, width)).sum().backward()
    model.zero_grad()


def sharded(me: Member, model: nn.Module, plan: osdp.Plan) -> nn.Module:
    dist.barrier()  # ranks start at different times
    return osdp.fully_shard(model, plans.apart(plan), process_group=me.group)


def failed(model: nn.Module, width: int = 8) -> tuple[str, list[str], float]:
    """What a step raised, its types, and after how long."""
    begin = time.monotonic()
    try:
        step(model, width)
    except BaseException as error:
        return str(error), [kind.__name__ for kind in type(error).__mro__], time.monotonic() - begin
    raise AssertionError("nothing was raised")


class Late(nn.Module):
    """Sleeps in the middle of a pass, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.sleeps = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.sleeps == "forward":
            time.sleep(LATE_S)
        if self.sleeps == "backward":
            x.register_hook(lambda _: time.sleep(LATE_S))
        return self.last(x)


def interrupted(me: Member, where: str, mode: str) -> tuple[str, list[str], float]:
    """Rank 0 waits for the last rank, which is late, and gets SIGINT, as from Ctrl-C in its terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    torch.manual_seed(0)
    model = Late()
    model = sharded(me, model, osdp.Plan.uniform(osdp.describe(model, torch.randn(2, 8)), mode))
    for _ in range(4):
        step(model)
    dist.barrier()
    if me.rank == 0:
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
    if me.rank == me.world - 1:
        model.sleeps = where
    return failed(model)


@pytest.mark.parametrize(("where", "mode"), [("forward", "FULL_SHARD"), ("backward", "NO_SHARD")])
def test_an_interrupt_while_waiting_for_a_late_rank(where, mode):
    endings = run_doomed(interrupted, where, mode, world=3, timeout_s=TIMEOUT_S)
    for rank, ending in enumerate(endings):
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        if rank == 0:
            assert kinds[0] == "KeyboardInterrupt", (kinds, message)
            assert seconds < LATE_S, seconds  # it did not wait until the late rank came
        else:
            assert kinds[0] == "RankError" and "rank 0" in message and "interrupted" in message, message
            assert seconds < LATE_S + SOON_S, (rank, seconds)


# --- memory that runs out

WIDTH = 3072  # 36 MiB a layer: above what malloc keeps to itself when it is freed
MIB = 2**20
UNIT_MIB = WIDTH * WIDTH * 4 // MIB


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def used_bytes() -> int:
    """Address space in use, once it has stood still: threads of the process's start end, and give their stacks back."""
    sizes = [0]
    while sizes[-4:] != sizes[-1:] * 4:
        time.sleep(0.05)
        sizes.append(int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    return sizes[-1]


def starved(me: Member, starving: tuple[int, ...], more_mib: int) -> tuple[str, list[str], float]:
    """After good steps, ranks may have so much more address space than they hold between steps."""
    torch.manual_seed(0)
    model = Wide()
    sample = torch.randn(2, WIDTH)
    options = {"modes": "FULL_SHARD", "granularity": 1, "checkpoint": False, "batch_size": 2}
    plan = osdp.search(
        model, (sample,), memory="4GiB", world_size=me.world, hardware="rtx-titan-8", **options
    )
    model = sharded(me, model, plan)
    assert model.layers[0].weight.shape[0] == WIDTH // me.world
    for _ in range(2):
        step(model, WIDTH)
    dist.barrier()
    if me.rank in starving:
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes() + more_mib * MIB, resource.RLIM_INFINITY))
    return failed(model, WIDTH)


def told(endings: list[Ending], starving: tuple[int, ...]) -> list[str]:
    """Messages of the ranks that had no memory. Where all starve, one may hear of another before it is its turn."""
    messages = []
    for rank, ending in enumerate(endings):
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        assert seconds < SOON_S + 5, (rank, seconds)  # a rank is named once it has stood still a while
        if kinds[0] == "OutOfMemoryError":
            assert rank in starving and kinds[1] == "OSDPError", (rank, message)
            messages.append(message)
        else:
            assert kinds[0] == "RankError", (kinds, message)
            assert re.search(r"rank \d failed in 'layers.*: out of memory", message), message
    assert messages if len(starving) > 1 else len(messages) == len(starving)
    return messages


@pytest.mark.parametrize("starving", [(0, 1), (1,)])
def test_no_memory_to_gather_into(starving):
    """Every rank that cannot gather says what was asked for and what the plan predicted; the others name it."""
    endings = run_doomed(starved, starving, UNIT_MIB // 2, world=2, timeout_s=TIMEOUT_S)
    for message in told(endings, starving):
        assert f"{UNIT_MIB} MiB were requested to gather parameters" in message, message
        assert "all-gather" in message and "The plan predicted a peak of" in message, message
        assert "smaller batch" in message
