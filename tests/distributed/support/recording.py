"""A backend of one's own that notes what it was made with: gloo's, registered with torch.distributed."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch.distributed as dist

MADE: list[Recording] = []


@dataclasses.dataclass
class Options:
    """What such a backend lets its user choose, as NCCL's options do."""

    config: str = ""
    split_from: Any = None
    split_color: int = -1
    _timeout: timedelta = timedelta(seconds=60)

    def __deepcopy__(self, memo: dict[int, Any]) -> Options:  # as NCCL's: the communicator is not copied
        return dataclasses.replace(self)


class Recording(dist.ProcessGroupGloo):
    def __init__(self, wanted: Any, options: Options | None) -> None:
        super().__init__(wanted.store, wanted.group_rank, wanted.group_size, wanted.timeout)
        self.given = options
        self.name_given = wanted.group_id
        self.ranks = list(wanted.global_ranks_in_group)
        self.connected_to: Any = None
        MADE.append(self)

    def eager_connect_single_device(self, device: Any) -> None:
        self.connected_to = device

    @property
    def options(self) -> Options:  # type: ignore[override]
        return self.given or Options()


def register() -> None:
    if "RECORDING" not in dist.Backend._plugins:
        dist.Backend.register_backend("recording", Recording, extended_api=True, devices=["cpu"])
