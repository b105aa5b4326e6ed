"""Background: a checkpoint that is written while training continues.

Note [No collectives in the background]
Collectives of a checkpoint would interleave with those of training in a different order on every rank. So
while a checkpoint is written, ranks exchange data through its directory: each rank creates a file that says
what it wrote, or that it failed, and rank 0 reads these files, completes the checkpoint and removes them.
Only `wait` communicates: if a rank has died, the heartbeat names it there. Rank 0 gives up on a missing file
immediately if `wait` failed; otherwise a minute after every rank has reported that it is done, or after this
process's main thread has ended.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

from osdp.base.progress import log
from osdp.checkpoint.manifest import FileEntry
from osdp.checkpoint.saving import Saving, Written, typed_do
from osdp.errors import OSDPError
from osdp.ranks.rank_group import Together

_POLL_S = 0.02
_PATIENCE_S = 60.0


class Background:
    """Starts writing immediately. `completed`: called on rank 0 when the checkpoint is complete under its
    name."""

    def __init__(self, saving: Saving, completed: Callable[[], None]) -> None:
        self._saving = saving
        self._completed = completed
        self._error: Exception | None = None  # of writing; later, on rank 0, of completing
        self._written = threading.Event()
        self._stop = threading.Event()
        self._deadline: float | None = None
        # Not a daemon: a script that ends right after a save still gets its checkpoint.
        self._thread = threading.Thread(target=self._run, name=f"osdp.save {saving.target.name}")
        self._thread.start()

    def wait(self, together: Together) -> None:
        """Wait until the checkpoint is complete under its name. Collective; raises on all ranks if it failed
        on one."""
        step = f"saving {str(self._saving.target)!r:.200}"
        try:
            self._written.wait()
            typed_do(together, step, self._raise)
        except BaseException:
            self._stop.set()
            self._thread.join()
            raise
        self._deadline = time.monotonic() + _PATIENCE_S
        self._thread.join()
        typed_do(together, step, self._raise)

    def abandon(self) -> None:
        """Stop this rank's writing: an incomplete checkpoint will not be completed. Not collective."""
        self._stop.set()
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._tell(self._saving.write())
        except Exception as error:
            self._failed(error)
            return
        finally:
            self._written.set()
        if self._saving.rank > 0:
            return
        try:
            self._saving.complete([self._told(rank) for rank in range(self._saving.world_size)])
            self._completed()
            log.info(f"{self._saving.target} saved in {time.monotonic() - began:.1f} s")
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._error = error  # the next `wait` raises it
        log.error(f"{self._saving.target} was not saved: {error}")
        self._saving.abandon()

    def _path(self, rank: int) -> str:
        return str(self._saving.path / f"written-{rank}.json")

    def _tell(self, written: Written) -> None:
        document = {
            "boxes": written.boxes,
            "files": {name: [entry.bytes, entry.crc32] for name, entry in written.files.items()},
        }
        path = self._path(self._saving.rank)
        with open(f"{path}.tmp", "x", encoding="utf-8") as file:
            json.dump(document, file)
        os.rename(f"{path}.tmp", path)

    def _told(self, rank: int) -> Written:
        """The report of a rank; waits for its file, and removes it."""
        path = self._path(rank)
        while not os.path.exists(path):
            if self._stop.is_set():
                raise OSDPError("abandoned: another rank failed")
            if self._deadline is None and not threading.main_thread().is_alive():
                self._deadline = time.monotonic() + _PATIENCE_S
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise OSDPError(
                    f"rank {rank} died, or wrote {path} where rank 0 does not see it: save to a "
                    "directory on a file system that all ranks share"
                )
            time.sleep(_POLL_S)
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        os.unlink(path)
        return Written(
            {
                key: [(tuple(offsets), tuple(sizes), *place) for offsets, sizes, *place in rows]
                for key, rows in document["boxes"].items()
            },
            {name: FileEntry(*entry) for name, entry in document["files"].items()},
        )
