"""Jobs of a profile that each rank does by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from osdp.errors import ProfileError
from osdp.ranks.rank_group import Together

T = TypeVar("T")


def each(ranks: Together, what: str, job: Callable[[], T]) -> T:
    """This rank's `job()`, which must not communicate; if it fails on any rank, all ranks raise the same
    ProfileError."""
    result: T | None = None
    cause: Exception | None = None
    try:
        result = job()
    except Exception as error:
        cause = error
    reports = ranks.all("" if cause is None else f"{type(cause).__name__}: {cause}")
    for rank, text in enumerate(reports):
        if text:
            raise ProfileError(f"rank {rank} failed while {what}: {text}") from cause
    return result  # type: ignore[return-value]
