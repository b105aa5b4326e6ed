"""SetAside: parameters and buffers that the sharding of their model does not touch."""

from __future__ import annotations

from collections.abc import Set
from types import TracebackType

from torch import Tensor, nn


class SetAside:
    """Context in which these parameters and buffers of `model` (by id) are plain attributes of their modules, so that
    forwards find them and nothing else does."""

    def __init__(self, model: nn.Module, tensors: Set[int]) -> None:
        self.model = model
        self._tensors = tensors
        self._homes: list[tuple[nn.Module, str, list[tuple[str, Tensor | None]]]] = []

    def __enter__(self) -> SetAside:
        for module in self.model.modules() if self._tensors else ():
            for held in ("_parameters", "_buffers"):
                container = vars(module)[held]
                if not any(id(t) in self._tensors for t in container.values()):
                    continue
                self._homes.append((module, held, list(container.items())))
                for key in [k for k, t in container.items() if id(t) in self._tensors]:
                    vars(module)[key] = container.pop(key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, held, items in self._homes:
            container = vars(module)[held]
            now = dict(container)
            container.clear()
            for key, tensor in items:  # in the former order; others may be new objects, from the meta device
                container[key] = vars(module).pop(key) if id(tensor) in self._tensors else now[key]
