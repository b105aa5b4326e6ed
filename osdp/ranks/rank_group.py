"""Together: steps of all ranks that fail on all of them if they fail on one.

Note [Exchanges on the lane]
Exchanges between ranks use the lane, like a training step's collectives: so the heartbeat names a rank that
died, hangs or runs different code, with the phase ("osdp.save"), within the same times (docs/faults.md).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import torch
from torch import distributed as dist

from osdp import errors
from osdp.errors import FormatError, OSDPError
from osdp.ranks.process_groups import lane_group, rank_name

T = TypeVar("T")


def ranks_by(values: Sequence[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Ranks with equal values together, in the order of their first ranks.

    >>> ranks_by(["a", "b", "a", "b"])
    ((0, 2), (1, 3))
    """
    found: dict[Hashable, list[int]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(rank)
    return tuple(map(tuple, found.values()))


def first_unlike(values: Sequence[object]) -> int:
    """The first rank whose value is not rank 0's; 0: all have the same."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), 0)


class Together:
    """The ranks of a process group (None: the default group), or one process if torch.distributed is not initialised.

    `phase`: what they do together, for errors; the same on all ranks.

    >>> together = Together()
    >>> plan = together.do("reading the plan", lambda: osdp.Plan.load(path))  # raises on all ranks, or on none
    """

    def __init__(self, process_group: dist.ProcessGroup | None = None, phase: str = "an exchange") -> None:
        self.phase = phase
        self.alone = process_group is None and not (dist.is_available() and dist.is_initialized())
        self.group = None if self.alone else process_group or dist.group.WORLD
        self.rank = 0 if self.alone else dist.get_rank(self.group)
        self.world_size = 1 if self.alone else dist.get_world_size(self.group)

    def name(self, rank: int) -> str:
        """What errors call a rank of these: "rank 6", numbered in the job."""
        return f"rank {rank}" if self.group is None else rank_name(self.group, rank)

    def name_ranks(self, names: Sequence[str]) -> None:
        """What errors call each of these ranks from now on. Collective."""
        if self.group is not None and self.world_size > 1:
            lane_group(self.group, _device_of(self.group), self.phase).name_ranks(names)

    def all(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks. `value` must be picklable and small."""
        if self.group is None or self.world_size == 1:
            return [value]
        lane = lane_group(self.group, _device_of(self.group), self.phase)
        mine = pickle.dumps(value)  # pybind11 takes bytes for a std::string
        return [pickle.loads(told) for told in lane.collectives.all_bytes(self.phase, mine)]  # type: ignore[arg-type]

    def first(self, work: Callable[[], T]) -> T:
        """Rank 0's result of `work`, on every rank."""
        return self.all(work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def done_first(self, step: str, work: Callable[[], T]) -> T:
        """Rank 0's result of `work`, on every rank. If it raised, all ranks raise, as in `do`."""
        return self.all(self.do(step, lambda: work() if self.rank == 0 else None))[0]  # type: ignore[return-value]

    def do(self, step: str, work: Callable[[], T]) -> T:
        """This rank's result of `work`. If it raised on some rank, all ranks raise: that one its own error,
        the others an error of the same OSDP type (else OSDPError) that names `step` and the rank.

        `work` must not use collectives that a failing rank would not reach, unless all ranks fail there in
        the same way.
        """
        results: list[T] = []
        error: Exception | None = None
        try:
            results.append(work())
        except Exception as caught:
            error = caught
        self.raise_everywhere(step, error)
        return results[0]

    def raise_everywhere(self, step: str, error: Exception | None) -> None:
        """Raises on all ranks if some rank has an error, as `do` does."""
        described = None if error is None else (type(error).__name__, str(error), getattr(error, "field", ""))
        failures = [(rank, found) for rank, found in enumerate(self.all(described)) if found is not None]
        if error is not None:
            if "stage" in (name := self.name(self.rank)):  # of a pipeline: others' errors call it so
                error.add_note(f"This is {name}.")
            raise error
        if failures:
            rank, (kind, message, field) = failures[0]
            raise _rebuilt(f"{step} failed on {self.name(rank)}: {message}", kind, field)


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """The device for exchanging objects: the CPU if the group supports it."""
    kinds = [device.type for device in group._device_types]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())


def _rebuilt(message: str, kind: str, field: str) -> OSDPError:
    cls = getattr(errors, kind, OSDPError)
    if not (isinstance(cls, type) and issubclass(cls, OSDPError)):
        return OSDPError(f"{message} ({kind})")
    return FormatError(message, field) if cls is FormatError else cls(message)
