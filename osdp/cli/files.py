"""Input and output files of commands: `-` is standard input, and output files are checked before the work."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Protocol, TypeVar

from osdp.errors import FormatError, InvalidProblemError

T = TypeVar("T", covariant=True)
STANDARD = "-"


class Kind(Protocol[T]):
    """A value that files hold: osdp.Plan, Hardware, ModelDescription."""

    @staticmethod
    def load(path: str, /) -> T: ...
    @staticmethod
    def loads(text: str, /) -> T: ...


def read(kind: Kind[T], path: str) -> T:
    """The value in the file `path`, or in standard input. Raises FormatError as `kind.load` does."""
    if path != STANDARD:
        return kind.load(path)
    text = sys.stdin.read()
    if not text:
        raise FormatError("standard input is empty, or was read already: only one argument may be -")
    try:
        return kind.loads(text)
    except FormatError as error:
        raise FormatError(f"standard input: {error}", error.field, error.line, error.column) from None


def check_output(option: str, path: str | None) -> None:
    """Raises InvalidProblemError if the file `path` cannot be written. Leaves no file."""
    if path is None or path == STANDARD:
        return
    target = Path(path)
    if target.is_dir():
        raise InvalidProblemError(f"{option} {path}: is a directory; give a file")
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe
        return
    folder = target.resolve().parent
    if not folder.is_dir():
        raise InvalidProblemError(f"{option} {path}: no such directory: {folder}")
    try:  # permissions are not enough: the file system may be read-only, or full
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InvalidProblemError(f"{option} {path}: {folder} is not writable: {error.strerror}") from None


def check_picture(path: str | None) -> None:
    """The same for a plot; also if matplotlib is missing or does not support the file's extension."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidProblemError("--plot needs matplotlib: pip install 'osdp[plot]'")
    from matplotlib.backend_bases import FigureCanvasBase

    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".").lower() not in known:
        raise InvalidProblemError(f"--plot {path}: the name must end in one of .{', .'.join(known)}")
    check_output("--plot", path)
