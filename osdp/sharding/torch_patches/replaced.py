"""What OSDP replaces in torch while there are sharded models.

Note [Torch left as found]
The first model that a process shards installs the replacements (install.py); when the last one is gone, torch's own are
back. docs/torch.md lists them with their reasons, and a test compares the list with what differs in torch. Each calls
what it replaced, and does nothing else for models that are not sharded. If another library has replaced ours since, ours
cannot be taken out from under it: it stays until the next sharded model uses it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Replacement:
    owner: Any  # a module, a class or a closure's cell
    name: str
    was: Any
    ours: Any


_replacements: list[_Replacement] = []
_hooks: list[Any] = []  # torch's RemovableHandles


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """owner.name becomes `make` of what it is."""
    if any(r.owner is owner and r.name == name for r in _replacements):
        return  # left over: see the Note
    was = getattr(owner, name)
    ours = make(was)
    setattr(owner, name, ours)
    _replacements.append(_Replacement(owner, name, was, ours))


def hook(handle: Any) -> None:
    """`handle`: what torch returned for a hook."""
    _hooks.append(handle)


def put_back() -> None:
    while _hooks:
        _hooks.pop().remove()
    for r in reversed(list(_replacements)):
        if getattr(r.owner, r.name, None) is r.ours:
            setattr(r.owner, r.name, r.was)
            _replacements.remove(r)
