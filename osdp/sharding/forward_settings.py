"""What this thread's settings are for a forward, so that another one can have the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._device import DeviceContext


class ForwardSettings:
    """Autocast, on the CPU and on `device_type`, and the innermost `with torch.device(...)`: as they are when it is made."""

    def __init__(self, device_type: str) -> None:
        self.autocast = {
            kind: _autocast(kind) for kind in (device_type, "cpu") if torch.amp.is_autocast_available(kind)
        }
        self.device = _device_context()

    @contextmanager
    def restored(self) -> Iterator[None]:
        """They are as they were."""
        with ExitStack() as stack:
            for kind, before in self.autocast.items():
                # Where it is on, entering it again also ends the life of the casts that it caches.
                if before[0] or _autocast(kind) != before:
                    enabled, dtype, cache = before
                    stack.enter_context(torch.amp.autocast(kind, dtype, enabled, cache))
            if self.device is not None:
                stack.enter_context(self.device)
            yield


def _autocast(kind: str) -> tuple[bool, torch.dtype, bool]:
    return (
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.is_autocast_cache_enabled(),
    )


def _device_context() -> Any:
    if torch._C._len_torch_function_stack() == 0:
        return None
    overrides: Any = torch.overrides
    modes = overrides._get_current_function_mode_stack()
    return next((mode for mode in reversed(modes) if isinstance(mode, DeviceContext)), None)
