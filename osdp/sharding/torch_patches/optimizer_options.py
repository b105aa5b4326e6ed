"""Detects optimizer options that differ between ranks (such as from a schedule that uses one rank's loss)
within a few steps.

Note [A digest of the options]
Each rank updates its own rows, so different learning rates cause no difference in values that two ranks
share. In an optimizer's first steps and in every 100th, each rank sends a digest of its groups' options along
with the model's communication; the next step compares them, when the result has long arrived. So the error is
raised one step late, and other steps cost nothing.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.optim import Optimizer

from osdp import _C
from osdp.errors import DisagreementError
from osdp.ranks.process_groups import lane_group

FIRST, EVERY = 3, 100


Place = tuple[dist.ProcessGroup, torch.device]


class OptionCheck:
    """The check for one optimizer, whose parameters belong to models sharded over these groups, on these
    devices."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self._lanes = [(p, lane_group(*p).collectives) for p in places if dist.get_world_size(p[0]) > 1]
        self._steps = 0
        self._told: list[tuple[Place, _C.Work, Tensor, float, str]] = []

    def before_step(self, optimizer: Optimizer) -> None:
        """Raises DisagreementError if the last digest differed between ranks."""
        told, self._told = self._told, []
        for (group, _), ticket, mean, own, options in told:
            ticket.wait()
            given = float(mean)
            ticket.wait()  # a fault also ends the wait on the device, and is then raised here
            if abs(given - own) > 0.25:
                raise DisagreementError(
                    f"rank {dist.get_rank(group)}: in the previous step the options of "
                    f"{type(optimizer).__name__} differed between ranks; on this rank they were "
                    f"{options}. Each rank then updates its rows of the parameters differently. Give "
                    "schedulers the same loss on every rank (its mean: "
                    "torch.distributed.all_reduce), and load an earlier checkpoint."
                )
        step, self._steps = self._steps, self._steps + 1
        if not self._lanes or (step >= FIRST and step % EVERY):
            return
        options = str([_plain(group) for group in optimizer.param_groups])
        own = float(zlib.crc32(options.encode()))
        for place, lane in self._lanes:
            mean = torch.tensor([own], dtype=torch.float64, device=place[1])
            ticket = lane.submit_all_reduce_mean([mean])
            self._told.append((place, ticket, mean, own, options))


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.tolist() if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key not in ("params", "param_names") and not callable(value)
    }
