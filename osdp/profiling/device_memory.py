"""What a device's memory holds beside tensors (`Hardware.device_memory`), measured on it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from osdp.hardware.device_statistics import DeviceStatistics
from osdp.hardware.device_timer import synchronize
from osdp.hardware.hardware import DeviceMemory
from osdp.ranks.process_groups import LaneGroup

_LARGE = 2**21  # bytes of a tensor that the allocator cuts from a large block


class MemoryProbe:
    """Asks before and after what takes memory beside tensors. On a CPU, and where a device cannot tell, all is 0.

    Note [Whose memory it is]
    A device tells what is in use on all of it. What the caching allocator has not reserved of that is the context, the
    communicators, and what other processes use there, which this one cannot have either. A communicator is what that
    grows by when the collectives first run on it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._statistics = DeviceStatistics(device)
        self._before = self._in_use_beside()
        self._communicator = 0

    def communicated(self, lane: LaneGroup) -> None:
        """Collectives of this group have just run: the first ones, unless an earlier probe has seen those."""
        grown = max(0, self._in_use_beside() - self._before)
        lane.communicator_bytes = self._communicator = max(grown, lane.communicator_bytes)

    def found(self, step: Callable[[], object] | None, communicators: int) -> DeviceMemory:
        """At the end of a profile, when all kernels that a step needs have been loaded. `communicators`: those that were
        made by now. `step`: a forward and backward.
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
        """What the smallest tensor takes, and what is reserved for it and for a large one where nothing is yet: on a
        stream of its own.
        """
        before = self._allocated()
        self._statistics.empty_cache()
        with torch.Stream(device=self._device):
            reserved = [self._reserved()]
            tensors = [torch.empty(1, dtype=torch.uint8, device=self._device)]
            rounding = self._allocated() - before
            reserved.append(self._reserved())
            tensors.append(torch.empty(_LARGE, dtype=torch.uint8, device=self._device))
            reserved.append(self._reserved())
            tensors.clear()
        self._statistics.empty_cache()
        return rounding, reserved[1] - reserved[0], reserved[2] - reserved[1]

    def _workspace(self) -> int:
        """What stays allocated after a matrix product that found no workspace."""
        if self._device.type == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        matrix = torch.ones(256, 256, device=self._device)
        before = self._allocated()
        torch.mm(matrix, matrix)  # its result is let go of
        return max(0, self._allocated() - before)

    def _unused(self, step: Callable[[], object]) -> int:
        """What was reserved beyond what tensors took, where each was largest in a step."""
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
