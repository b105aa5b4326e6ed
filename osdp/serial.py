"""Strict JSON for the value types: what is written is read back equal; anything else is refused by name.

A file is `{"osdp": KIND, "version": 1, ...the dataclass's fields}`. Reading follows the dataclasses' type
annotations and nothing else: no eval, no pickle, no unknown or missing or repeated fields, no bool where an
int belongs.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from osdp.errors import FormatError

T = TypeVar("T")

VERSION = 1
MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 32
MAX_STRING = 4096  # characters, of a value or a key
_INT64 = 2**63
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


class _Unreadable:
    """A JSON value that no field can hold; found while parsing, reported by `decode`, which knows the field's
    path.
    """

    def __init__(self, why: str) -> None:
        self.why = why


def dumps(kind: str, value: object) -> str:
    """The text of `value`, a dataclass of ours. Raises FormatError for a number that is not finite."""
    return _pretty({"osdp": kind, "version": VERSION, **_encode(value, "")}, 3) + "\n"


def loads(kind: str, cls: type[T], text: str) -> T:
    """The `cls` that `dumps(kind, ...)` wrote as `text`. Raises FormatError that names the field."""
    data = _parse(text)
    if not isinstance(data, dict) or "osdp" not in data:
        raise FormatError(f"not an osdp {kind} file: it must be a JSON object with a field 'osdp'", "osdp")
    if data["osdp"] != kind:
        raise FormatError(f"osdp: this is {_show(data['osdp'])}, not an osdp {kind!r} file", "osdp")
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise FormatError(f"version: {_show(version)} is not a version; expected {VERSION}", "version")
    if version > VERSION:
        raise FormatError(
            f"version: the file has version {version}, this osdp reads up to {VERSION}; use a newer osdp",
            "version",
        )
    result: T = decode(cls, {k: v for k, v in data.items() if k not in ("osdp", "version")})
    return result


def save_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` so that `path` holds either the old content or all of the new one, also after a crash."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(
            temporary, 0o666 & ~mask
        )  # mkstemp's 0600 would hide the plan from the other users of a cluster
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_text(path: str | os.PathLike[str]) -> str:
    """The text of a file of at most 64 MiB. Raises FormatError when larger or not UTF-8, OSError as usual."""
    with open(path, "rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise FormatError(
            f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; this is not a file that osdp wrote"
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text: {error}") from None


def load_file(path: str | os.PathLike[str], kind: str, cls: type[T]) -> T:
    """`loads` of a file; a FormatError's message begins with the path."""
    try:
        return loads(kind, cls, load_text(path))
    except FormatError as error:
        message = str(error)
        raise FormatError(
            message if message.startswith(f"{path}: ") else f"{path}: {message}", error.field
        ) from None


def _pretty(data: Any, levels: int, indent: str = "") -> str:
    """JSON with a line for each item; what holds only single values, or lies below `levels`, is one line.

    For people who read or compare such files, and much faster than json's own indentation.
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
        return {f.name: _encode(getattr(value, f.name), _join(path, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _encode(item, _join(path, key)) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise FormatError(f"{path}: {value} cannot be written: numbers must be finite", path)
    return value


def _parse(text: str) -> Any:
    depth = 0
    for token in _STRUCTURE.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise FormatError(f"nested deeper than {MAX_DEPTH} levels (at character {token.start()})")
        elif token[0] in "]}":
            depth -= 1

    def integer(digits: str) -> int | _Unreadable:
        number = int(digits) if len(digits) <= 20 else _INT64
        return number if -_INT64 <= number < _INT64 else _Unreadable("the integer does not fit 64 bits")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Unreadable:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return _Unreadable(f"{_show(twice)} is there more than once")

    try:
        data = json.loads(text, parse_int=integer, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise FormatError(f"not valid JSON (truncated or damaged): {error}") from None
    except RecursionError:
        raise FormatError(f"nested deeper than {MAX_DEPTH} levels") from None
    if isinstance(data, _Unreadable):
        raise FormatError(data.why)
    return data


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def decode(hint: Any, data: object, path: str = "") -> Any:
    """`data`, as JSON gives it, as a value of type `hint`; FormatError names `path` where it does not fit."""
    if isinstance(data, _Unreadable):
        raise FormatError(f"{path or 'file'}: {data.why}", path)
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_dataclass(hint, data, path)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if data is None and types.NoneType in inner:
            return None
        rest = [t for t in inner if t is not types.NoneType]
        assert len(rest) == 1, f"unions other than X | None are not used: {hint}"
        return decode(rest[0], data, path)
    if origin is tuple:
        if not isinstance(data, list):
            raise _wrong("a list", data, path)
        items = [inner[0]] * len(data) if len(inner) == 2 and inner[1] is Ellipsis else list(inner)
        if len(items) != len(data):
            raise _wrong(f"a list of {len(items)}", data, path)
        return tuple(
            decode(t, item, f"{path}[{i}]") for i, (t, item) in enumerate(zip(items, data, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise _wrong("an object", data, path)
        return {
            decode(str, key, path): decode(inner[1], item, _join(path, key)) for key, item in data.items()
        }
    return _decode_scalar(hint, data, path)


def _decode_dataclass(cls: type, data: object, path: str) -> Any:
    if not isinstance(data, dict):
        raise _wrong("an object", data, path)
    hints = _hints(cls)
    known = [f.name for f in fields(cls)]
    _refuse_first(
        path, (k for k in data if k not in known), "unknown field; was the file written by a newer osdp?"
    )
    _refuse_first(path, (k for k in known if k not in data), "missing field; is the file truncated?")
    return cls(**{name: decode(hints[name], data[name], _join(path, name)) for name in known})


def _decode_scalar(hint: Any, data: object, path: str) -> Any:
    if hint is bool and isinstance(data, bool):
        return data
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if hint is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        if not math.isfinite(data):
            raise _wrong("a finite number", data, path)
        return float(data)
    if hint is str and isinstance(data, str):
        if len(data) > MAX_STRING:
            raise FormatError(f"{path}: text of {len(data)} characters; at most {MAX_STRING}", path)
        return data
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
    raise _wrong(names[hint], data, path)


def _refuse_first(path: str, names: Iterable[object], why: str) -> None:
    for name in names:
        field = _join(path, str(name)[:100])
        raise FormatError(f"{field}: {why}", field)


def _wrong(expected: str, data: object, path: str) -> FormatError:
    return FormatError(f"{path or 'file'}: expected {expected}, found {_show(data)}", path)


def _show(data: object) -> str:
    if isinstance(data, dict):
        return "an object"
    if isinstance(data, list):
        return f"a list of {len(data)}"
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
