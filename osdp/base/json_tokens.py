"""The tokens of a JSON text, and the path of each: where an error is.

Note [Finding the place of an error]
The parser gives values without their places in the text. Where a text is refused, `tokens` walks it once more up to the
place: only a file with an error pays for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

Path = tuple[str | int, ...]  # names and indices that lead from the whole text to a value

MAX_DEPTH = 32  # of nested lists and objects

STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TOKEN = re.compile(rf"({STRING.pattern})|([][{{}},:])|[^][{{}},:\"\s]+", re.DOTALL)


class Token(NamedTuple):
    """A name or a value (of a list or object only its bracket), or another mark, and the path of what it belongs to."""

    kind: str  # "name", "value", "mark"
    text: str
    offset: int
    path: Path


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text, up to what is nested too deep. Behind the first error they may be anything."""
    path: list[str | int | None] = []  # None: an object whose next name is to come
    for found in _TOKEN.finditer(text):
        token, is_text, is_mark = found[0], found[1] is not None, found[2] is not None
        kind = "value"
        if token in ("}", "]", ",") and not path:
            return
        if token in ("}", "]"):
            path.pop()
            kind = "mark"
        elif token == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
            kind = "mark"
        elif token == ":":
            kind = "mark"
        elif path and path[-1] is None and not is_mark:
            if not is_text:
                return
            try:
                path[-1] = str(json.loads(token))
            except ValueError:
                return
            kind = "name"
        yield Token(kind, token, found.start(), tuple(step for step in path if step is not None))
        if is_mark and token in "[{":
            if len(path) >= MAX_DEPTH:
                return
            path.append(0 if token == "[" else None)


def show(value: Any) -> str:
    """A value for error messages: "an object", "a list of 3", or its text, shortened."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 2**200:  # may have more digits than Python converts
        return "an integer of more than 60 digits"
    text = json.dumps(_printable(value, 60) if isinstance(value, str) else value, ensure_ascii=False)
    return text if isinstance(value, str) or len(text) <= 60 else text[:60] + "..."


def _printable(text: str, characters: int) -> str:
    shown = "".join(c if c >= " " else " " for c in text[:characters])
    shown = shown.encode(errors="replace").decode()  # without halves of surrogate pairs
    return shown + "..." if len(text) > characters else shown


def dotted(path: Path) -> str:
    """("choices", "a", 3) as "choices.a[3]"; long names are shortened."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{_printable(step, 100)}" for step in path)
    return "".join(steps).removeprefix(".")


def resolved(value: Any, field: str) -> Path:
    """The path of the value at `field`, or of the innermost one around it that exists."""
    path: list[str | int] = []
    while field:
        if isinstance(value, dict):
            fitting = [
                n for n in value if field.startswith(n) and field[len(n) : len(n) + 1] in ("", ".", "[")
            ]
            if not fitting:
                break
            step: str | int = max(fitting, key=len)
            field = field[len(str(step)) :].removeprefix(".")
        elif isinstance(value, list) and (index := re.match(r"\[(\d{1,9})\]\.?", field)):
            step = int(index[1])
            if step >= len(value):
                break
            field = field[index.end() :]
        else:
            break
        path.append(step)
        value = value[step]
    return tuple(path)
