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
from support.faults import PATIENT_S, SOON_S
from torch import nn

import osdp


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
    """Does not go on in the middle of a pass, forward or backward, until the file `awaits` is there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.stays = ""
        self.awaits = Path()

    def stay(self, *_: object) -> None:
        until = time.monotonic() + 2 * SOON_S
        while not self.awaits.exists() and time.monotonic() < until:
            time.sleep(0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.stays == "forward":
            self.stay()
        if self.stays == "backward":
            x.register_hook(self.stay)
        return self.last(x)


def interrupted(me: Member, where: str, mode: str, over: Path) -> tuple[str, list[str], float]:
    """Rank 0 waits for the last rank, and gets SIGINT, as from Ctrl-C in its terminal; the last rank comes after that."""
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
        model.stays, model.awaits = where, over
    told = failed(model)
    over.touch()
    return told


@pytest.mark.parametrize(("where", "mode"), [("forward", "FULL_SHARD"), ("backward", "NO_SHARD")])
def test_an_interrupt_while_waiting_for_a_late_rank(tmp_path, where, mode):
    endings = run_doomed(interrupted, where, mode, tmp_path / "over", world=3, timeout_s=PATIENT_S)
    for rank, ending in enumerate(endings):
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        if rank == 0:
            assert kinds[0] == "KeyboardInterrupt", (kinds, message)
        else:
            assert kinds[0] == "RankError" and "rank 0" in message and "interrupted" in message, message
        assert seconds < SOON_S, (rank, seconds)  # it did not wait until the last rank came


# --- memory that runs out

# 81 MiB a layer: malloc maps it on its own and gives it back when it is freed, and it does not fit into the 64 MiB of
# address space that malloc reserves for a thread, where it looks once nothing can be mapped.
WIDTH = 4608
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
    while sizes[-10:] != sizes[-1:] * 10:
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
        assert seconds < SOON_S, (rank, seconds)
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
    endings = run_doomed(starved, starving, UNIT_MIB // 2, world=2, timeout_s=PATIENT_S)
    for message in told(endings, starving):
        assert f"{UNIT_MIB} MiB were requested to gather parameters" in message, message
        assert "all-gather" in message and "The plan predicted a peak of" in message, message
        assert "smaller batch" in message
