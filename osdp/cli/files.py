"""Input and output files of commands: `-` is standard input, and output files are checked before the work."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any, Protocol, TypeVar

from osdp.base.json_files import InFile, load_bytes
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
    try:
        return kind.loads(_standard_input())
    except FormatError as error:
        raise _of(_STANDARD_INPUT, error) from None


def read_either(one: type[InFile], other: type[InFile], path: str) -> Any:
    """The same for a file of either class, as its header says."""
    where, text = (_STANDARD_INPUT, _standard_input()) if path == STANDARD else (path, load_bytes(path))
    try:
        return one.loads(text)
    except FormatError as error:
        found = error
    if found.field == "osdp":  # the header's kind
        try:
            return other.loads(text)
        except FormatError as error:
            found = found if error.field == "osdp" else error
    raise _of(where, found)


_STANDARD_INPUT = "standard input"


def _standard_input() -> str:
    text = sys.stdin.read()
    if not text:
        raise FormatError("it is empty, or was read already: only one argument may be -")
    return text


def _of(where: str, error: FormatError) -> FormatError:
    return FormatError(f"{where}: {error}", error.field, error.line, error.column)


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
