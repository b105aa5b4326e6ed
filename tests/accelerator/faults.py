"""Cases that end in a fault of one rank, the last one: what becomes of the others. Each trains well for two steps before."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from cases import plan_of
from torch import nn
from training import Setting, train

import osdp

FAULTS: dict[str, Callable[[Setting], None]] = {}


def timeout_s() -> float:
    """The process group's."""
    return float(os.environ.get("FAULT_TIMEOUT_S", "300"))


def fault(function: Callable[[Setting, nn.Module], None]) -> None:
    def case(s: Setting) -> None:
        if s.device.type == "cpu":
            return
        dist.all_reduce(torch.zeros(1))  # all have begun
        model = s.model()
        # Nothing is gathered ahead, in the order of an earlier step: in any order of the blocks the k-th collectives
        # are of one size.
        plan = dataclasses.replace(plan_of(s, model), prefetch=0)
        group = dist.new_group(timeout=timedelta(seconds=timeout_s()))
        model = osdp.fully_shard(model.to(s.device), plan, process_group=group)
        train(s, model, count=2)
        s.close()
        if s.rank == s.world - 1:
            function(s, model)
        train(s, model, count=3, first=2)
        time.sleep(1)  # longer than it takes ranks to compare what they have enqueued
        train(s, model, count=1, first=5)
        s.close()

    FAULTS[function.__name__] = case


@fault
def dies(s: Setting, model: nn.Module) -> None:
    """In the middle of a forward."""

    def end(*_: Any) -> None:
        os._exit(0)

    model.blocks[1].register_forward_hook(end)


@fault
def stays_away(s: Setting, model: nn.Module) -> None:
    time.sleep(2 * timeout_s())


class OtherWay(nn.ModuleList):
    def __iter__(self) -> Iterator[nn.Module]:
        return iter([self[0], self[2], self[1]])


@fault
def runs_modules_in_another_order(s: Setting, model: nn.Module) -> None:
    """Of equal sizes: every collective finds its partner, and ends."""
    model.blocks.__class__ = OtherWay


@fault
def computes_for_ever(s: Setting, model: nn.Module) -> None:
    """On its device, in the middle of a forward; the host goes on."""

    x, y = torch.ones(2, 1500, 1500).unbind()
    begin = time.perf_counter()
    x.addmm_(y, y)
    products = max(150, round(20 / (time.perf_counter() - begin)))  # on a fast machine, too

    def compute(*_: Any) -> None:
        x, y = torch.ones(2, 1500, 1500, device=s.device).unbind()
        for _ in range(products):
            x.addmm_(y, y)

    model.blocks[1].register_forward_hook(compute)
