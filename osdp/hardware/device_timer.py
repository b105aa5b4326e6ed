"""Seconds by owner, on a device that may run behind the program."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class Timeline:
    """A row of stamps; the time between two stamps belongs to the owner named by the later one.

    On CPU a stamp is the time; elsewhere it is an event that the device records when it gets there, so that
    nothing waits while the row is made. `None` is nobody's time.
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
        """Seconds of every owner; waits until the device has passed the last stamp."""
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
    """Seconds until `device` has done all of it."""
    synchronize(device)
    begin = time.perf_counter()
    job()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done everything; nothing to do on CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
