"""Measures the memory that a device holds besides tensors (`Hardware.device_memory`)."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from osdp.hardware.device_statistics import DeviceStatistics
from osdp.hardware.device_timer import synchronize
from osdp.hardware.hardware import DeviceMemory
from osdp.ranks.process_groups import LaneGroup

_LARGE = 2**21  # bytes of a tensor that the allocator places in a large block


class MemoryProbe:
    """Measures memory besides tensors before and after its allocation. On a CPU, and on devices without
    statistics, everything is 0.

    Note [Whose memory it is]
    A device reports its total memory in use. The part that the caching allocator has not reserved consists of
    the context, the communicators, and memory of other processes, which is not available to this one either.
    A communicator's size is the growth of this part when its first collectives run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._statistics = DeviceStatistics(device)
        self._before = self._in_use_beside()
        self._communicator = 0

    def communicated(self, lane: LaneGroup) -> None:
        """Called when collectives of this group have just run, for the first time unless an earlier probe has
        measured them."""
        grown = max(0, self._in_use_beside() - self._before)
        lane.communicator_bytes = self._communicator = max(grown, lane.communicator_bytes)

    def found(self, step: Callable[[], object] | None, communicators: int) -> DeviceMemory:
        """The result, at the end of a profile, when all kernels of a step have been loaded. `communicators`:
        the number created by now. `step`: a forward and backward.
        """
        if self._statistics.reserved() is None or self._statistics.allocated() is None:
            return DeviceMemory()
        rounding, small, large = self._allocator()
        context = self._in_use_beside() - communicators * self._communicator
        return DeviceMemory(
            context_bytes=max(0, context),
            communicator_bytes=self._communicator,
            workspace_bytes=self._workspace(),
            tensor_rounding_bytes=rounding,
            small_block_bytes=small,
            large_block_bytes=large,
            unused_bytes=max(0, self._unused(step) - small - large) if step is not None else 0,
        )

    def _in_use_beside(self) -> int:
        told, reserved = self._statistics.free_and_total(), self._statistics.reserved()
        if told is None or reserved is None:
            return 0
        synchronize(self._device)
        return max(0, told[1] - told[0] - reserved)

    def _allocator(self) -> tuple[int, int, int]:
        """Bytes that the smallest tensor takes, and that are reserved for it and for a large one on a new
        stream, where nothing is reserved yet.
        """
        # Garbage of earlier steps, collected in between, would be subtracted.
        gc.collect()
        synchronize(self._device)
        self._statistics.empty_cache()
        before = self._allocated()
        with torch.Stream(device=self._device):
            reserved = [self._reserved()]
            tensors = [torch.empty(1, dtype=torch.uint8, device=self._device)]
            rounding = max(0, self._allocated() - before)
            reserved.append(self._reserved())
            tensors.append(torch.empty(_LARGE, dtype=torch.uint8, device=self._device))
            reserved.append(self._reserved())
            tensors.clear()
        self._statistics.empty_cache()
        return rounding, reserved[1] - reserved[0], reserved[2] - reserved[1]

    def _workspace(self) -> int:
        """Bytes that remain allocated after a matrix product that had no workspace yet."""
        if self._device.type == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        matrix = torch.ones(256, 256, device=self._device)
        before = self._allocated()
        torch.mm(matrix, matrix)  # the result is freed
        return max(0, self._allocated() - before)

    def _unused(self, step: Callable[[], object]) -> int:
        """Peak of reserved memory minus peak of tensors' memory in a step."""
        synchronize(self._device)
        self._statistics.empty_cache()
        self._statistics.reset_peaks()
        step()
        synchronize(self._device)
        reserved, allocated = self._statistics.peak_reserved(), self._statistics.peak_allocated()
        return 0 if reserved is None or allocated is None else max(0, reserved - allocated)

    def _allocated(self) -> int:
        return self._statistics.allocated() or 0

    def _reserved(self) -> int:
        return self._statistics.reserved() or 0
