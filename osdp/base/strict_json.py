"""Parses JSON as RFC 8259 has it and nothing more: the standard library's parser, and what it lets pass.

Refused besides: repeated names, NaN and Infinity, numbers outside the range of a double, halves of surrogate pairs, text
that is not UTF-8, and what exceeds the limits. Errors name line, column and field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from osdp.base.json_tokens import MAX_DEPTH, STRING, Path, Token, dotted, resolved, show, tokens
from osdp.errors import FormatError

MAX_TEXT = 4096  # characters, of one text or name
_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_LONG = f"a string of more than {MAX_TEXT} characters"
HUGE = "the integer does not fit 64 bits"


@dataclass(frozen=True)
class Limits:
    """On the size of a text. They bound the memory that a hostile file can take."""

    bytes: int
    values: int  # numbers, texts, names, lists and objects together


class Violation(Exception):
    """A value that is refused: where, and why."""

    def __init__(self, why: str, path: Path = (), at_name: bool = False) -> None:
        super().__init__(why)
        self.why, self.path, self.at_name = why, path, at_name

    def inside(self, step: str | int) -> Violation:
        """The same, seen from the list or object that holds the value as `step`."""
        self.path = (step, *self.path)
        return self


class Text:
    """A JSON text and its value. FormatError if it is not valid."""

    def __init__(self, raw: bytes, limits: Limits) -> None:
        if len(raw) > limits.bytes:
            self.text = ""
            self._refuse(0, (), f"larger than {limits.bytes} bytes")
        try:
            self.text = raw.decode()
        except UnicodeDecodeError as error:
            self.text = raw[: error.start].decode()
            self._refuse(len(self.text), (), "not UTF-8 text")
        if _more_values(self.text, limits.values):
            self._refuse(0, (), f"more than {limits.values} values")
        try:
            self.value = _DECODER.decode(self.text)
        except json.JSONDecodeError as error:
            self._refuse_syntax(error)
        except _BadNumber as error:
            digits, why = error.args
            self._refuse_at(self._first(lambda token: token.text.startswith(digits)), why)
        except _Repeated:
            self._refuse_repeated()
        except RecursionError:
            self._refuse_deep()
        except ValueError:  # Python's own limit to the digits of an integer
            self._refuse_at(self._first(_has_many_digits), HUGE)
        if _SURROGATE.search(self.text) and (token := self._first(_has_half)):
            self._refuse_at(token, "not valid JSON: half of a surrogate pair")

    def refuse(self, error: Violation) -> NoReturn:
        """Raise FormatError for a violation, at its place or, if that is not there, at what is around it."""
        self._refuse(self._offset(error.path, error.at_name), error.path, error.why)

    def refuse_field(self, field: str, why: str) -> NoReturn:
        """The same for a field as in "choices.blocks.0.up.mode". A name may contain dots: the longest that fits is it."""
        line, column = self._position(self._offset(resolved(self.value, field)))
        raise FormatError(f"line {line}, column {column}: {field}: {why}", field, line, column)

    def check_plain(self) -> None:
        """What no schema checks. FormatError for texts that are too long, and values that are nested too deep."""
        try:
            check_plain(self.value)
        except Violation as error:
            self.refuse(error)

    def _refuse(self, offset: int, path: Path, why: str) -> NoReturn:
        (line, column), field = self._position(offset), dotted(path)
        said = f"{field}: {why}" if field else why
        raise FormatError(f"line {line}, column {column}: {said}", field, line, column)

    def _position(self, offset: int) -> tuple[int, int]:
        return 1 + self.text.count("\n", 0, offset), offset - self.text.rfind("\n", 0, offset)

    def _offset(self, path: Path, at_name: bool = False) -> int:
        found, depth = 0, -1
        for token in tokens(self.text):
            if token.kind != "mark" and len(token.path) > depth and token.path == path[: len(token.path)]:
                if len(token.path) == len(path) and (token.kind == "name") == at_name:
                    return token.offset
                if token.kind == "value":
                    found, depth = token.offset, len(token.path)
        return found

    def _first(self, wrong: Callable[[Token], bool]) -> Token | None:
        return next((token for token in tokens(self.text) if token.kind != "mark" and wrong(token)), None)

    def _refuse_at(self, token: Token | None, why: str) -> NoReturn:
        self._refuse(token.offset if token else 0, token.path if token else (), why)

    def _refuse_syntax(self, error: json.JSONDecodeError) -> NoReturn:
        path: Path = ()
        for token in tokens(self.text):
            if token.offset >= error.pos:
                break
            path = token.path
        if not self.text[error.pos :].strip() or error.msg.startswith("Unterminated string"):
            why = f"the text ends here (truncated?); {error.msg[0].lower()}{error.msg[1:]}"
        else:
            found = self.text[error.pos]
            hints = {"/": " (JSON has no comments)", "'": " (JSON strings use double quotes)"}
            shown = repr(found) if found.isprintable() else "a control character"
            why = f"{error.msg[0].lower()}{error.msg[1:]}, found {shown}{hints.get(found, '')}"
        self._refuse(error.pos, path, f"not valid JSON: {why}")

    def _refuse_repeated(self) -> NoReturn:
        names: dict[int, set[str]] = {}
        for token in tokens(self.text):
            if token.kind == "value":
                names[len(token.path) + 1] = set()
            elif token.kind == "name":
                name = str(token.path[-1])
                if name in names[len(token.path)]:
                    self._refuse_at(token, f"{show(name)} appears more than once")
                names[len(token.path)].add(name)
        self._refuse_deep()  # what is nested deeper was not looked at

    def _refuse_deep(self) -> NoReturn:
        *_, last = tokens(self.text)
        self._refuse_at(last, _DEEP)


def check_plain(value: Any, depth: int = 0, integers: tuple[int, int] | None = None) -> None:
    """Check a value that may be anything, inside of `depth` lists and objects. Violation for a text that is too long, for
    what is nested too deep, and for an integer outside of `integers`."""
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, (list, dict)):
        if depth >= MAX_DEPTH:
            raise Violation(_DEEP)
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(step, str):
                check_name(step)
            try:
                check_plain(item, depth + 1, integers)
            except Violation as error:
                raise error.inside(step) from None
    elif isinstance(value, int) and integers and not integers[0] <= value <= integers[1]:
        raise Violation(f"{show(value)}: {HUGE}")


def check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise Violation(_LONG)


def check_name(name: str) -> None:
    if len(name) > MAX_TEXT:
        raise Violation(_LONG, (name,), at_name=True)


class _BadNumber(Exception):
    """(its text, why) of a number that is refused."""


class _Repeated(Exception):
    """An object has two members of one name."""


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Repeated
    return found


def _double(digits: str) -> float:
    number = float(digits)
    lost = number == 0 and any(c in "123456789" for c in re.split("[eE]", digits)[0])
    if lost or math.isinf(number):
        raise _BadNumber(digits, f"{digits[:60]}: the number does not fit a double")
    return number


def _constant(word: str) -> NoReturn:
    raise _BadNumber(word, f"{word}: numbers must be finite")


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_float=_double, parse_constant=_constant)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # or a pair, or an escaped backslash before "ud83d"


def _has_many_digits(token: Token) -> bool:
    return len(token.text) > 600 and token.text[0] in "-0123456789"


def _has_half(token: Token) -> bool:
    return token.text[0] == '"' and any("\ud800" <= c <= "\udfff" for c in json.loads(token.text))


def _more_values(text: str, most: int) -> bool:
    """Whether a valid text has more than `most` values and names."""
    if 1 + sum(map(text.count, ",:[{")) <= most:
        return False
    bare = re.sub(r"\s+", "", STRING.sub('"', text))
    return 1 + sum(map(bare.count, ",:[{")) - bare.count("[]") - bare.count("{}") > most
