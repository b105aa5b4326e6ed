"""Memory statistics of a device, through its torch module (torch.cuda, torch.xpu, ...)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class DeviceStatistics:
    """Memory statistics of one accelerator, in bytes; None where its torch module does not provide them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)

    def free_and_total(self) -> tuple[int, int] | None:
        """Free and total memory of the whole device, all processes included."""
        told = self._ask("mem_get_info")
        return None if told is None else (int(told[0]), int(told[1]))

    def allocated(self) -> int | None:
        """Memory in tensors, each rounded up by the allocator."""
        return self._number("memory_allocated")

    def reserved(self) -> int | None:
        """Memory that the caching allocator has reserved on the device."""
        return self._number("memory_reserved")

    def peak_allocated(self) -> int | None:
        return self._number("max_memory_allocated")

    def peak_reserved(self) -> int | None:
        return self._number("max_memory_reserved")

    def reset_peaks(self) -> None:
        self._ask("reset_peak_memory_stats")

    def empty_cache(self) -> None:
        """Release memory that the caching allocator has reserved and no tensor uses."""
        if self._module is not None and hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def _number(self, name: str) -> int | None:
        told = self._ask(name)
        return None if told is None else int(told)

    def _ask(self, name: str) -> Any:
        function: Callable[..., Any] | None = getattr(self._module, name, None)
        return None if function is None else function(self._device)
