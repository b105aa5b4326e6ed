"""The end of a process at a chosen call that changes directories."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from osdp.checkpoint.places import Partial


class Killed(BaseException):
    """Stands for the end of the process: nothing after it may run."""


def kill_at(
    monkeypatch: pytest.MonkeyPatch, step: int, calls_of: Iterable[tuple[object, str]]
) -> tuple[list[str], list[Partial]]:
    """Ends the run before the `step`-th of `calls_of` (owners and names). The calls so far, and what it was writing."""
    calls: list[str] = []
    living: list[Partial] = []
    begin = Partial.__init__

    def noted(self: Partial, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        living.append(self)

    def before(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if len(calls) >= step:
                raise Killed
            calls.append(name)
            return real(*args, **kwargs)

        return call

    monkeypatch.setattr(Partial, "__init__", noted)
    for owner, name in calls_of:
        full = f"{getattr(owner, '__name__', owner)}.{name}"
        monkeypatch.setattr(owner, name, before(full, getattr(owner, name)))
    return calls, living


def end(living: list[Partial]) -> None:
    """Gives up their locks, as the end of a process does."""
    for partial in living:
        partial._unlock()
