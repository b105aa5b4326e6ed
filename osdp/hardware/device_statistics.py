"""What a device says of its memory, through its own module of torch (torch.cuda, torch.xpu, ...)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class DeviceStatistics:
    """Bytes of one accelerator; None where its module of torch cannot tell."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)

    def free_and_total(self) -> tuple[int, int] | None:
        """Of the whole device, whoever uses it."""
        told = self._ask("mem_get_info")
        return None if told is None else (int(told[0]), int(told[1]))

    def allocated(self) -> int | None:
        """In tensors, each rounded up as the allocator does."""
        return self._number("memory_allocated")

    def reserved(self) -> int | None:
        """Taken from the device by the caching allocator."""
        return self._number("memory_reserved")

    def peak_allocated(self) -> int | None:
        return self._number("max_memory_allocated")

    def peak_reserved(self) -> int | None:
        return self._number("max_memory_reserved")

    def reset_peaks(self) -> None:
        self._ask("reset_peak_memory_stats")

    def empty_cache(self) -> None:
        """Gives back to the device what the caching allocator has reserved and no tensor has."""
        if self._module is not None and hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def _number(self, name: str) -> int | None:
        told = self._ask(name)
        return None if told is None else int(told)

    def _ask(self, name: str) -> Any:
        function: Callable[..., Any] | None = getattr(self._module, name, None)
        return None if function is None else function(self._device)
