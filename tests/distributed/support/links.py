"""Each kind of link, on ranks that share a host and would use shared memory; a model with messages of all lengths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from torch import nn

NO = {"sockets": ("OSDP_SHARED_MEMORY",), "gloo": ("OSDP_SHARED_MEMORY", "OSDP_SOCKETS")}


@contextlib.contextmanager
def only(link: str) -> Iterator[None]:
    """A group whose first model is made in here uses this link."""
    for name in NO[link]:
        os.environ[name] = "0"
    try:
        yield
    finally:
        for name in NO[link]:
            del os.environ[name]


def links_of(link: str) -> contextlib.AbstractContextManager[None]:
    return only(link) if link in NO else contextlib.nullcontext()


def tower() -> nn.Module:
    """Units of many messages, of one, and of a part of one; the last without a whole chunk on every rank."""
    return nn.Sequential(nn.Linear(256, 301), nn.Tanh(), nn.Linear(301, 64), nn.Tanh(), nn.Linear(64, 7))
