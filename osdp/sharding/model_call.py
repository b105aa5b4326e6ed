"""ModelCall: the call of a sharded model that runs, to end it where torch does not.

Note [Interrupted hooks]
After an Exception torch runs the hooks that are always called; Ctrl-C is none. Raised in a module's forward, ours ends the
call there (gathering_calls.py). Raised in a hook of the script on the model itself, before or after its forward, it would
leave the model in its forward for ever: later steps had no gradients. So the frame of the call is kept while it runs, and
whoever is about to begin another call, or asks whether the model is in one, looks whether that frame still runs.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osdp import _C


class ModelCall:
    def __init__(self, hook: _C.CallHook) -> None:
        self._hook = hook
        self._frame: FrameType | None = None
        self._thread = 0

    def begin(self, frame: FrameType) -> None:
        """`frame`: of torch's call of the model."""
        self._frame, self._thread = frame, threading.get_ident()

    def end(self) -> None:
        self._frame = None

    def end_interrupted(self) -> None:
        """End the call if an exception has ended its frame."""
        if self._frame is None or self._thread != threading.get_ident():
            return
        running: FrameType | None = sys._getframe(1)
        while running is not None:
            if running is self._frame:
                return
            running = running.f_back
        self._frame = None
        self._hook.abandon()
