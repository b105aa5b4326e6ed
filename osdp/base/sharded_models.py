"""The registry of sharded models. It is in this package so that `describe` need not load the runtime."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

from osdp.base.compiled_modules import unwrapped

# Model -> its osdp.sharding.sharded_model.Sharded, for as long as the model lives.
HANDLES: WeakKeyDictionary[nn.Module, object] = WeakKeyDictionary()


def is_sharded(model: nn.Module) -> bool:
    """Whether `model`, or the module that it compiles or wraps, was given to `fully_shard`."""
    return unwrapped(model) in HANDLES
