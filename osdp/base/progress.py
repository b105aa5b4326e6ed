"""Progress of long operations: a line on the terminal, or log messages of the logger "osdp".

Operations of less than a second show nothing. If INFO is enabled for the logger "osdp", rank 0 logs progress every ten
seconds and at the end. Otherwise, if standard error is a terminal, it shows one line there, which is removed when the work
is done; only from the main thread, since lines of others would mix with the script's output. With the logger's level above
WARNING nothing is shown.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from types import TracebackType

log = logging.getLogger("osdp")

_PATIENCE_S = 1.0
_BETWEEN_LINES_S = 0.2
_BETWEEN_RECORDS_S = 10.0


class Progress:
    """Called with the present state as often as is convenient; shows it from time to time. `name`: of the
    operation, such as "osdp.search".

    >>> with Progress("osdp.load") as progress:
    ...     progress("checked 1.00 GiB of 2.00 GiB")
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._began = time.monotonic()
        # So that a second passes before the first.
        self._told = self._began + _PATIENCE_S - _BETWEEN_RECORDS_S
        self._logs = log.isEnabledFor(logging.INFO) and _first_rank()
        self._shows = not self._logs and log.isEnabledFor(logging.WARNING) and _at_a_terminal()
        self._between_s = _BETWEEN_RECORDS_S if self._logs else _BETWEEN_LINES_S
        self._shown = False

    def __call__(self, doing: str) -> None:
        now = time.monotonic()
        if now - self._began >= _PATIENCE_S and now - self._told >= self._between_s:
            self._tell(doing, now)

    def step(self, doing: str) -> None:
        """Show immediately that a step begins which is known to take long."""
        self._tell(doing, time.monotonic())

    def _tell(self, doing: str, now: float) -> None:
        self._told = now
        line = f"{self.name}: {doing}, {now - self._began:.0f} s"
        if self._logs:
            log.info(line)
        elif self._shows:
            sys.stderr.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()
            self._shown = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        seconds = time.monotonic() - self._began
        if self._logs and seconds >= _PATIENCE_S:
            log.info(f"{self.name}: {'done' if error is None else 'failed'} after {seconds:.1f} s")


def _first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _at_a_terminal() -> bool:
    alone = threading.current_thread() is threading.main_thread()
    return alone and _first_rank() and sys.stderr is not None and sys.stderr.isatty()
