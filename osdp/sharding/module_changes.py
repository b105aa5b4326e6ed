"""ModuleChanges: records what sharding installs on modules (hooks, forwards, watched methods, cast buffers), to
remove it again.

Changes that a script has made since, such as hooks or another forward, are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

_ABSENT = object()
# Not recorded: parameters from the meta device have been replaced by new objects.
_OTHERS = ("_parameters", "_modules")


# Stored in an attribute of the model: its entries refer to the model, so an owner that outlives the model would
# keep it alive.
_ATTRIBUTE = "_osdp_changes"


class ModuleChanges:
    def __init__(self, model: nn.Module) -> None:
        """Record the state before installation; `note` records it after."""
        self._model = vars(model)
        self._before = [(m, dict(vars(m)), _dicts(m)) for m in model.modules()]
        # (dictionary, key, old value, new value): undone if the value is still the new one.
        self._changes: list[tuple[dict[Any, Any], Any, Any, Any]] = []
        self._holding: list[dict[Any, Any]] = []  # where the modules of the tree hold parameters and children
        self._held = 0  # how many entries these had

    def note(self) -> None:
        for module, attributes, held in self._before:
            self._compare(vars(module), attributes)
            for name, (container, copied) in held.items():
                if name not in _OTHERS and vars(module).get(name) is container:
                    self._compare(container, copied)
        self.count_entries(module for module, _, _ in self._before)
        self._before = []
        self._model[_ATTRIBUTE] = self

    def count_entries(self, modules: Iterable[nn.Module]) -> None:
        self._holding = [held for module in modules for held in (module._parameters, module._modules)]
        self._held = sum(map(len, self._holding))

    def same_number_of_entries(self) -> bool:
        """Whether no module or parameter was removed since they were counted, which torch does not report; other changes
        are registrations."""
        return sum(map(len, self._holding)) == self._held

    @contextmanager
    def also(self, model: nn.Module) -> Iterator[None]:
        """Context in which more is installed on the modules of `model`, after `note`."""
        self._before = [(m, dict(vars(m)), _dicts(m)) for m in model.modules()]
        yield
        self.note()

    def put(self, module: nn.Module, name: str, value: object) -> None:
        """Set an attribute after `note`; it is taken off like what was installed before."""
        was = vars(module).get(name, _ABSENT)
        setattr(module, name, value)
        self._changes.append((vars(module), name, was, value))

    @staticmethod
    def put_on(model: nn.Module, module: nn.Module, name: str, value: object) -> None:
        """Set an attribute of a module of `model`, before `note` or after it."""
        changes = vars(model).get(_ATTRIBUTE)
        if changes is not None:
            changes.put(module, name, value)
        else:
            setattr(module, name, value)

    @staticmethod
    def on(model: nn.Module) -> ModuleChanges:
        """The record of `model`, which is sharded."""
        changes = vars(model)[_ATTRIBUTE]
        assert isinstance(changes, ModuleChanges)
        return changes

    def __deepcopy__(self, memo: object) -> None:
        """A copy of the model is not sharded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(None), ())

    def _compare(self, now: dict[Any, Any], before: dict[Any, Any]) -> None:
        for key in {**now, **before}:
            was, is_ = before.get(key, _ABSENT), now.get(key, _ABSENT)
            if was is not is_:
                self._changes.append((now, key, was, is_))

    def take_off(self) -> None:
        for holder, key, was, put in reversed(self._changes):
            if holder.get(key, _ABSENT) is not put:
                continue
            if isinstance(was, Tensor) and isinstance(put, Tensor):  # a cast buffer
                was.copy_(put)
            if was is _ABSENT:
                del holder[key]
            else:
                holder[key] = was
        self._model.pop(_ATTRIBUTE, None)


def _dicts(module: nn.Module) -> dict[str, tuple[dict[Any, Any], dict[Any, Any]]]:
    return {name: (value, dict(value)) for name, value in vars(module).items() if isinstance(value, dict)}
