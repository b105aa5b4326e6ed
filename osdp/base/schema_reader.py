"""Reads files of each kind: the check of a JSON value against its dataclass's shape (schema.py), and the dataclass.

The first field that does not fit is a Violation. Unknown and missing fields come first, since they point to a file of
another version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import repeat
from typing import Any

from osdp.base import file_versions
from osdp.base.json_tokens import show
from osdp.base.schema import INT64, Shape, shape_of
from osdp.base.strict_json import HUGE, Violation, check_name, check_plain, check_text

Read = Callable[[Any], Any]  # from a JSON value to ours


def version_of(kind: str, document: Any) -> int:
    """The version in the header of a file of `kind`. Violation if it is not such a file, or newer."""
    newest = file_versions.newest(kind)
    if not isinstance(document, dict) or "osdp" not in document:
        why = f"not an osdp {kind!r} file: it must be a JSON object with a field 'osdp'"
        raise Violation(why, ("osdp",))
    if document["osdp"] != kind:
        raise Violation(f"this is {show(document['osdp'])}, not an osdp {kind!r} file", ("osdp",))
    if "version" not in document:
        raise Violation(f"missing field; expected version {newest}", ("version",))
    version = document["version"]
    if type(version) is not int or version < 1:
        raise Violation(f"{show(version)} is not a version; expected {newest}", ("version",))
    if version > newest:
        why = f"the file has version {show(version)}, this osdp reads up to {newest}; use a newer osdp"
        raise Violation(why, ("version",))
    return version


@cache
def reader(cls: type) -> Read:
    """What makes a `cls` of a file without its header."""
    return _read(shape_of(cls), 0)


def _read(shape: Shape, depth: int) -> Read:
    read = _READS[shape.kind](shape, depth)
    if not shape.nullable:
        return read
    return lambda value: None if value is None else read(value)


def _wrong(expected: str, value: Any) -> Violation:
    return Violation(f"expected {expected}, found {show(value)}")


def _boolean(shape: Shape, depth: int) -> Read:
    def read(value: Any) -> bool:
        if type(value) is not bool:
            raise _wrong("true or false", value)
        return value

    return read


def _integer(shape: Shape, depth: int) -> Read:
    least, most = INT64
    if shape.minimum is not None:
        least = shape.minimum + shape.above_minimum

    def read(value: Any) -> int:
        if type(value) is not int:
            raise _wrong("an integer", value)
        if not least <= value <= most:
            if not INT64[0] <= value <= most:
                raise Violation(f"{show(value)}: {HUGE}")
            raise _below(shape, value)
        return value

    return read


def _number(shape: Shape, depth: int) -> Read:
    least = -float("inf") if shape.minimum is None else shape.minimum

    def read(value: Any) -> float:
        if type(value) is not float:
            if type(value) is not int:
                raise _wrong("a number", value)
            try:
                value = float(value)
            except OverflowError:
                raise Violation(f"{show(value)}: the number does not fit a double") from None
        if value < least or (shape.above_minimum and value == least):
            raise _below(shape, value)
        return value  # type: ignore[no-any-return]

    return read


def _below(shape: Shape, value: Any) -> Violation:
    if shape.minimum == 0:
        bound = "positive" if shape.above_minimum else "not be negative"
        return Violation(f"must {'be ' * shape.above_minimum}{bound}, got {show(value)}")
    bound = "more than" if shape.above_minimum else "at least"
    return Violation(f"must be {bound} {shape.minimum}, got {show(value)}")


def _text(shape: Shape, depth: int) -> Read:
    allowed = frozenset(shape.allowed)

    def read(value: Any) -> str:
        if type(value) is not str:
            raise _wrong("text", value)
        if allowed and value not in allowed:
            raise Violation(f"{show(value)} is not one of {', '.join(shape.allowed)}")
        check_text(value)
        return value

    return read


def _list(shape: Shape, depth: int) -> Read:
    item = _read(shape.items[0], depth + 1)

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong("a list", value)
        return _read_each(repeat(item), value)

    return read


def _tuple(shape: Shape, depth: int) -> Read:
    items = [_read(item, depth + 1) for item in shape.items]

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong("a list", value)
        if len(value) != len(items):
            raise _wrong(f"a list of {len(items)}", value)
        return _read_each(items, value)

    return read


def _read_each(items: Iterable[Read], value: list[Any]) -> tuple[Any, ...]:
    """Each entry by its own of `items`; a Violation says where it is."""
    found: list[Any] = []
    try:
        for item, one in zip(items, value, strict=False):
            found.append(item(one))
    except Violation as error:
        raise error.inside(len(found)) from None
    return tuple(found)


def _map(shape: Shape, depth: int) -> Read:
    item = _read(shape.items[0], depth + 1)

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong("an object", value)
        found: dict[str, Any] = {}
        for name, one in value.items():
            check_name(name)
            try:
                found[name] = item(one)
            except Violation as error:
                raise error.inside(name) from None
        return found

    return read


def _object(shape: Shape, depth: int) -> Read:
    fields = [(name, _read(item, depth + 1)) for name, item in zip(shape.names, shape.items, strict=True)]
    names, cls = frozenset(shape.names), shape.cls
    header = {"osdp", "version"} if depth == 0 else frozenset()
    assert cls is not None

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong("an object", value)
        if value.keys() != names and (odd := value.keys() ^ names ^ header):
            raise _odd_field(value, odd, shape)
        found: list[Any] = []
        try:
            for name, field in fields:
                found.append(field(value[name]))
        except Violation as error:
            raise error.inside(name) from None
        return cls(*found)

    return read


def _odd_field(value: dict[str, Any], odd: set[str], shape: Shape) -> Violation:
    for name in value:
        if name in odd:
            return Violation("unknown field; was the file written by a newer osdp?", (name,), at_name=True)
    name = next(name for name in shape.names if name in odd)
    return Violation("missing field; is the file truncated?", (name,))


def _any(shape: Shape, depth: int) -> Read:
    def read(value: Any) -> Any:
        check_plain(value, depth, INT64)
        return value

    return read


_READS: dict[str, Callable[[Shape, int], Read]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "text": _text,
    "list": _list,
    "tuple": _tuple,
    "map": _map,
    "object": _object,
    "any": _any,
}
