"""Upgrading: the steps from each version of a kind of file to the next, all in one place.

Every kind of file has its own versions; a file states both: {"osdp": "plan", "version": 1, ...}. Readers know
the newest version only: an older document is first upgraded in memory, one version after the other.

To change a kind of file after a release: change its dataclass, add a step to the end of the kind's list here, which
gives the missing fields to an older document, and keep a file of the new version in tests/data/files:

    def _hardware_1(old: Document) -> Document:
        "what early files lack: what a profile measured on"
        return {"measured": None, **old}

    STEPS = {..., "hardware": (_hardware_1,), ...}  # the newest is version 2 now

A plan holds a description and hardware: a step of theirs is part of a step of the plan's.

A step receives a document of which only the header was checked: if a field is invalid it may raise any
exception, which becomes a FormatError. Its result is checked like every file of the newest version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from osdp.errors import FormatError

Document = dict[str, Any]
Step = Callable[[Document], Document]

# Kind -> its steps; the first one leads from version 1 to 2.
STEPS: dict[str, tuple[Step, ...]] = {
    "checkpoint": (),
    "description": (),
    "hardware": (),
    "parallel-plan": (),
    "plan": (),
}


def newest(kind: str) -> int:
    """The version that is written, which corresponds to the dataclasses."""
    return 1 + len(STEPS[kind])


def upgraded(kind: str, document: Document, version: int) -> Document:
    """The document in the newest version, unchanged if it has that already. FormatError if a step fails on
    it."""
    for number in range(version, newest(kind)):
        try:
            document = {**STEPS[kind][number - 1](document), "version": number + 1}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"the osdp {kind!r} file is damaged: upgrading it from version {number} failed: "
                f"{type(error).__name__}: {error}"
            ) from None
    return document
