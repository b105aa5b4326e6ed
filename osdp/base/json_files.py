"""Strict JSON for the value types: written values are read back equal; invalid files are refused with the
field's name.

A file is `{"osdp": KIND, "version": N, ...the dataclass's fields}`; older versions are upgraded when they are read
(osdp/base/file_versions.py). Reading (strict_json.py, schema_reader.py) follows the dataclasses' annotations
(osdp/base/schema.py) and nothing else: no eval, no pickle, no unknown or missing or repeated fields, no bool in place of
an int, and limits on all sizes.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from osdp.base import file_versions, schema_reader
from osdp.base.names import joined
from osdp.base.printed import PrintedLater
from osdp.base.strict_json import Limits, Text, Violation
from osdp.errors import FormatError

T = TypeVar("T")
Rules = Callable[[Any], Iterable[tuple[str, str]]]  # (field, error) of each violation

MAX_FILE_BYTES = 64 * 2**20
MAX_VALUES = 8 * 2**20  # numbers, texts, names, lists and objects together


class InFile(PrintedLater):
    """A value that files of its own kind hold."""

    KIND: ClassVar[str]

    def _problems(self) -> Iterable[tuple[str, str]]:
        """(field, error) of each violation of what types do not express."""
        return ()

    def dumps(self) -> str:
        """The value as JSON text, with a schema version; `loads` returns an equal one."""
        return dumps(self.KIND, self)

    @classmethod
    def loads(cls, text: str | bytes) -> Self:
        """Parse the text of `dumps`. Raises FormatError that names line and field."""
        return loads(cls.KIND, cls, text, cls._problems)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text to `path` atomically."""
        save_text(path, self.dumps())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read the file `path`. Raises FormatError that names the file, the line and the field."""
        return load_file(path, cls.KIND, cls, cls._problems)


def dumps(kind: str, value: object) -> str:
    """The text of `value`, one of our dataclasses. Raises FormatError for a number that is not finite."""
    return _pretty({"osdp": kind, "version": file_versions.newest(kind), **_encode(value, "")}, 3) + "\n"


def loads(
    kind: str,
    cls: type[T],
    text: str | bytes,
    rules: Rules | None = None,
    limits: Limits | None = None,
) -> T:
    """Parse the text of `dumps(kind, ...)` to a `cls` that satisfies `rules`. `limits`: instead of the usual
    ones.

    Raises FormatError that names line, column and field.
    """
    parsed = _parsed(text, limits)
    try:
        version = schema_reader.version_of(kind, parsed.value)
        document = file_versions.upgraded(kind, parsed.value, version)
        value: T = schema_reader.reader(cls)(document)  # type: ignore[arg-type]
    except Violation as error:
        parsed.refuse(error)
    except FormatError as error:  # upgrading stumbled
        parsed.refuse(Violation(str(error)))
    for field, why in rules(value) if rules else ():
        parsed.refuse_field(field, why)
    return value


def version(kind: str, text: bytes, limits: Limits) -> int:
    """The version in the header of a file of `kind`. FormatError if it is not such a file, or newer."""
    parsed = _parsed(text, limits)
    try:
        return schema_reader.version_of(kind, parsed.value)
    except Violation as error:
        parsed.refuse(error)


def parse(text: str | bytes) -> Any:
    """Parse any JSON text equally strictly, to dictionaries, lists, numbers and strings. Raises
    FormatError."""
    parsed = _parsed(text, None)
    parsed.check_plain()
    return parsed.value


def _parsed(text: str | bytes, limits: Limits | None) -> Text:
    # Halves of surrogate pairs, which only a str can hold, become bytes that are not UTF-8.
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return Text(raw, limits or Limits(MAX_FILE_BYTES, MAX_VALUES))


def save_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` so that `path` holds either the old content or all of the new one, also after a crash.

    A symbolic link is kept, and its target is replaced. Anything that is not a regular file (/dev/stdout, a
    pipe) is written to directly.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        Path(path).write_text(text, encoding="utf-8")
        return
    target = Path(os.path.realpath(path))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name:.80}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp's 0600 would hide the plan from the other users of a cluster.
        os.chmod(temporary, _mode(target))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """The mode of the replaced file, or the default one of a new file."""
    with contextlib.suppress(FileNotFoundError):
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def load_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file of at most 64 MiB. Raises FormatError if it is larger, OSError as usual."""
    with open(path, "rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise FormatError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; osdp does not write such files")
    return raw


def load_file(path: str | os.PathLike[str], kind: str, cls: type[T], rules: Rules | None = None) -> T:
    """`loads` of a file; a FormatError's message begins with the path."""
    raw = load_bytes(path)
    try:
        return loads(kind, cls, raw, rules)
    except FormatError as error:
        raise FormatError(f"{path}: {error}", error.field, error.line, error.column) from None


def _pretty(data: Any, levels: int, indent: str = "") -> str:
    """JSON with a line for each item; containers of scalars only, or below `levels`, are on one line.

    This is easier to read and compare, and much faster than json's own indentation.
    """
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if levels == 0 or (indent and not any(isinstance(item, (dict, list)) for item in items)):
        return json.dumps(data, allow_nan=False)
    inner = indent + " "
    if isinstance(data, list):
        lines = [f"{inner}{_pretty(item, levels - 1, inner)}" for item in data]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    lines = [f"{inner}{json.dumps(key)}: {_pretty(item, levels - 1, inner)}" for key, item in data.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def _encode(value: Any, path: str) -> Any:
    if is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name), joined(path, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _encode(item, joined(path, key)) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(f"{path}: {value} cannot be written: numbers must be finite", path)
    return value
