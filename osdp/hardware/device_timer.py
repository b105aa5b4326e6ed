"""Measures time by owner on devices that run asynchronously to the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Timeline:
    """A sequence of time stamps; the time between two stamps is attributed to the owner of the later one.

    On the CPU a stamp is a clock value; elsewhere it is a device event, so that recording it does not
    synchronize. The owner `None` stands for time that is not attributed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stamps: list[tuple[float | torch.Event, str | None]] = []

    def stamp(self, owner: str | None) -> None:
        moment: float | torch.Event
        if self._device.type == "cpu":
            moment = time.perf_counter()
        else:
            moment = torch.Event(self._device, enable_timing=True)
            moment.record()
        self._stamps.append((moment, owner))

    def seconds(self) -> dict[str | None, float]:
        """Seconds by owner; waits until the device has passed the last stamp."""
        synchronize(self._device)
        result: dict[str | None, float] = {}
        for (before, _), (after, owner) in zip(self._stamps, self._stamps[1:], strict=False):
            if isinstance(before, torch.Event) and isinstance(after, torch.Event):
                passed = before.elapsed_time(after) / 1e3
            else:
                assert isinstance(before, float) and isinstance(after, float)
                passed = after - before
            result[owner] = result.get(owner, 0.0) + passed
        return result


def timed(job: Callable[[], object], device: torch.device) -> float:
    """Seconds that `job` takes, until `device` has completed its work."""
    synchronize(device)
    begin = time.perf_counter()
    job()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Wait until `device` has completed all work; no-op on the CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
