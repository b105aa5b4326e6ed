"""Loads a state dict as into the unwrapped model."""

from __future__ import annotations

from typing import Any, cast

from torch import nn


def load_unwrapped(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`module.load_state_dict(...)`, with each wrapper inside of it replaced by its module meanwhile. torch follows modules
    by name, and would name a wrapped part "part.module" in missing and unexpected keys, in errors, and where it looks up
    the version of what was saved."""
    places = [
        (parent, key, child)
        for parent in module.modules()
        for key, child in parent._modules.items()
        if child is not None and hasattr(type(child), "_osdp_wrapped")
    ]
    for parent, key, wrapper in places:
        parent._modules[key] = cast(nn.Module, wrapper.module)
    try:
        return module.load_state_dict(*args, **kwargs)
    finally:
        for parent, key, wrapper in places:
            parent._modules[key] = wrapper
