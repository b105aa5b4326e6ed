"""The heap counter of this process (heap_peak.c, preloaded by support.launch)."""

from __future__ import annotations

import ctypes
import gc


class Heap:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        for name in ("heap_peak_live", "heap_peak_bytes"):
            getattr(self._library, name).restype = ctypes.c_longlong

    def live(self) -> int:
        """Bytes in blocks of at least 1 KiB that are live now, after a garbage collection."""
        gc.collect()
        return int(self._library.heap_peak_live())

    def restart(self) -> None:
        """The peak is what is live now."""
        self._library.heap_peak_restart()

    def peak(self) -> int:
        return int(self._library.heap_peak_bytes())
