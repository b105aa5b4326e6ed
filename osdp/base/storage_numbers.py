"""StorageNumbers: tells storages apart, also after one is freed."""

from __future__ import annotations

import itertools
import weakref

import torch


class StorageNumbers:
    """Numbers storages. A freed one's address may be that of another, but its number is not."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # living ones, by address
        self._count = itertools.count()

    def of(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        identity = int(storage._cdata)
        number = self._of.get(identity)
        if number is None:
            number = self._of[identity] = next(self._count)
            weakref.finalize(storage, self._of.pop, identity, None).atexit = False
        return number
