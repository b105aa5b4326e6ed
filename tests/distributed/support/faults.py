"""Models of which a rank dies, hangs, raises or goes another way, and what the others must say of it."""

from __future__ import annotations

import os
import signal
import time

import torch
from harness.doomed import Ending
from torch import nn

import osdp

# Of the process group. A rank that was not heard from for half of it does not respond: long enough for a heart on a
# busy machine.
TIMEOUT_S = 6.0
PATIENT_S = 300.0  # the same, where nothing may wait for it: an error comes long before
SOON_S = 60.0  # on any machine


class Wrong(Exception):
    pass


class ActsInBackward(torch.autograd.Function):
    """Its backward begins with `act()`."""

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
                    x = ActsInBackward.apply(x, self.act)
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


def judge(endings: list[Ending], culprit: int) -> list[str]:
    messages = []
    for rank, ending in enumerate(endings):
        if rank == culprit:
            continue
        assert ending.error is None and ending.signal is None, (rank, ending)
        message, kinds, seconds = ending.result
        assert kinds[0] == "RankError", (kinds, message)
        assert f"rank {culprit}" in message, message
        assert f"Rank {rank} waits at #" in message or f"Rank {rank} finished #" in message, message
        assert "'layers." in message and ("in forward of" in message or "in backward of" in message), message
        assert seconds < SOON_S, seconds
        messages.append(message)
    return messages


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
