"""ModuleProxy: takes the place of a module in a model, so that nothing finds the tensors and modules in it."""

from __future__ import annotations

from typing import Any

from torch import nn


class ModuleProxy(nn.Module):
    """A module without parameters, buffers or children that passes calls and attributes on to another module.

    It computes within its caller: descriptions attribute what it reads, saves and computes to the module that calls it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._held = (module,)  # in a tuple: not registered as a child

    @property
    def stands_for(self) -> nn.Module:
        return self._held[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.stands_for(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Python's and OSDP's own marks are the other module's alone.
        if name.startswith(("__", "_osdp")) or name == "_held":
            raise AttributeError(name)
        return getattr(self.stands_for, name)

    def __getitem__(self, key: Any) -> Any:
        return self.stands_for[key]  # type: ignore[index]
