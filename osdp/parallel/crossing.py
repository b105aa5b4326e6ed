"""Crossing: what the first module of a stage is called with, beside the tensor that passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from osdp.description.passages import CACHES

_DEEPEST = 4


@dataclass(frozen=True)
class Crossing:
    """What the entry of a stage was called with, without the tensor that passes: equal on both sides of a cut."""

    arguments: tuple[tuple[str, str], ...]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any], passes: str) -> Crossing:
        named = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
        return Crossing(tuple((name, _shown(value)) for name, value in named.items() if name != passes))


def _shown(value: Any, depth: int = 0) -> str:
    """Also what is in containers and objects: the first block may leave something there for all others."""
    if isinstance(value, Tensor):
        total = value.detach().double().sum().item() if not value.is_complex() else 0.0
        return f"{value.dtype} {tuple(value.shape)} with sum {total!r}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    kind = type(value)
    if depth == _DEEPEST or isinstance(value, (type, nn.Module)) or callable(value):
        return kind.__name__
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_shown(v, depth + 1) for v in value)})"
    if kind.__module__ == CACHES:
        return kind.__name__
    inside = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    shown = ", ".join(f"{name}={_shown(v, depth + 1)}" for name, v in inside.items())
    return f"{kind.__name__}({shown})"
