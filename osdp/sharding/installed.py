"""Installed: what sharding puts onto modules (hooks, forwards, watched methods, cast buffers), to take it off again.

What a script has put there since, a hook of its own or another forward, stays.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_ABSENT = object()
_OTHERS = (
    "_parameters",
    "_modules",
)  # placed, not installed: a parameter from the meta device is another object now


# Held by the model's own attributes: what it lists belongs to the model and leads back to it, so that anything that
# outlives the model would keep it alive.
_ATTRIBUTE = "_osdp_installed"


class Installed:
    def __init__(self, model: nn.Module) -> None:
        """Before anything is installed; `note` after."""
        self._model = vars(model)
        self._before = [(m, dict(vars(m)), _dicts(m)) for m in model.modules()]
        # Dictionary, key, what it held, what it holds: to be undone where it still does.
        self._changes: list[tuple[dict[Any, Any], Any, Any, Any]] = []

    def note(self) -> None:
        for module, attributes, held in self._before:
            self._compare(vars(module), attributes)
            for name, (container, copied) in held.items():
                if name not in _OTHERS and vars(module).get(name) is container:
                    self._compare(container, copied)
        self._before = []
        self._model[_ATTRIBUTE] = self

    @staticmethod
    def on(model: nn.Module) -> Installed:
        """What sharding put onto this model, which is sharded."""
        installed = vars(model)[_ATTRIBUTE]
        assert isinstance(installed, Installed)
        return installed

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not sharded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())

    def _compare(self, now: dict[Any, Any], before: dict[Any, Any]) -> None:
        for key in [*now, *(k for k in before if k not in now)]:
            was, is_ = before.get(key, _ABSENT), now.get(key, _ABSENT)
            if was is not is_:
                self._changes.append((now, key, was, is_))

    def take_off(self) -> None:
        for holder, key, was, put in reversed(self._changes):
            if holder.get(key, _ABSENT) is not put:
                continue
            if isinstance(was, Tensor) and isinstance(put, Tensor):  # a buffer that was cast
                was.copy_(put)
            if was is _ABSENT:
                del holder[key]
            else:
                holder[key] = was
        self._model.pop(_ATTRIBUTE, None)


def _dicts(module: nn.Module) -> dict[str, tuple[dict[Any, Any], dict[Any, Any]]]:
    return {name: (value, dict(value)) for name, value in vars(module).items() if isinstance(value, dict)}
