"""Member: what a case knows of the rank it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """This rank in the group of `world` ranks that runs the case."""

    rank: int
    world: int
    group: dist.ProcessGroup

    def part(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's samples (dimension 0) of a batch that the number of ranks divides."""
        if whole.shape[0] % self.world:
            raise ValueError(f"{whole.shape[0]} samples cannot be dealt evenly to {self.world} ranks")
        return whole.chunk(self.world)[self.rank]

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of `value` over the ranks, as a new detached tensor."""
        total = value.detach().clone()
        self.group.allreduce([total]).wait()  # dist.all_reduce, less its logging
        return total / self.world

    def everywhere(self, value: Any) -> list[Any]:
        """What every rank passed, in the order of ranks."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def once(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, which alone calls it: ranks share two processors, and would all find the same."""
        made: list[Any] = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(made, group=self.group, group_src=0)
        return made[0]
