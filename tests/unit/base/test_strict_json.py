"""The reader of files: what it reads, exactly; what it refuses, with line, column and field."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from osdp.base import file_versions, json_files
from osdp.base.schema import AtLeast, OneOf
from osdp.base.strict_json import Limits, Text
from osdp.errors import FormatError

LIMITS = Limits(2**20, 2000)


def read(text: str | bytes, limits: Limits = LIMITS) -> Any:
    parsed = Text(text.encode() if isinstance(text, str) else text, limits)
    parsed.check_plain()
    return parsed.value


def refused(text: str | bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(FormatError) as caught:
        read(text, limits)
    assert f"line {caught.value.line}, column {caught.value.column}: " in str(caught.value)
    return str(caught.value)


def test_values() -> None:
    assert read(" 0 ") == 0 and read("null") is None and read("[true, false]") == [True, False]
    assert read("-9223372036854775808") == -(2**63) and read(str(2**63)) == 2**63
    assert type(read("1.0")) is type(read("1e0")) is float and read("0.1") == 0.1
    assert read("5e-324") == math.ulp(0.0) and read("0e-999") == 0.0 and read("-0.0e99999") == 0.0
    text = '{"a\\u00e9\\ud83d\\ude00\\n": [1, {"b": []}, "", "\\\\ud83d"]}'
    assert read(text) == {"aé😀\n": [1, {"b": []}, "", "\\ud83d"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: not valid JSON: the text ends here (truncated?)"),
        ('{"a": [1,\n  2, }', "line 2, column 6: a[2]: not valid JSON: expecting value, found '}'"),
        ("[1,]", "[1]: not valid JSON: "),
        ('{"a": 1,}', "not valid JSON: "),
        ("[,1]", "expecting value, found ','"),
        ("{a: 1}", "property name enclosed in double quotes, found 'a'"),
        ("{'a': 1}", "JSON strings use double quotes"),
        ('{"a" 1}', "a: not valid JSON: expecting ':' delimiter, found '1'"),
        ("[1 2]", "[0]: not valid JSON: expecting ',' delimiter, found '2'"),
        ("[1}", "expecting ',' delimiter, found '}'"),
        ("[1", "the text ends here (truncated?)"),
        ('{"a": {"b": [NaN]}}', "column 14: a.b[0]: NaN: numbers must be finite"),
        ('["NaN", Infinity]', "column 9: [1]: Infinity: numbers must be finite"),
        ("-Infinity", "-Infinity: numbers must be finite"),
        ("1 // no", "line 1, column 3: not valid JSON: extra data, found '/' (JSON has no comments)"),
        ("[/* no */]", "JSON has no comments"),
        ("{} {}", "line 1, column 4: not valid JSON: extra data"),
        ("nul", "expecting value"),
        ("\ufeff{}", "line 1, column 1: not valid JSON: "),  # a byte order mark
        ("[1\x0b]", "found a control character"),
        ('["é", 1e309]', "line 1, column 7: [1]: 1e309: the number does not fit a double"),  # characters, not bytes
        ('["-1e-400", -1e-400]', "column 13: [1]: -1e-400: the number does not fit a double"),  # not silently 0
        (f'["{"9" * 700}", {"9" * 5000}]', "[1]: the integer does not fit 64 bits"),
        ('"abc', "truncated"),
        ('"a\nb"', "invalid control character"),
        ('"a\0b"', "invalid control character"),
        ('"\\x41"', "invalid \\escape"),
        ('"\\u12"', "invalid \\uXXXX escape"),
        ('"\\u12g4"', "invalid \\uXXXX escape"),
        ('"\\u+123"', "invalid \\uXXXX escape"),
        ('"\\u', "invalid \\uXXXX escape"),
        ('["\\\\ud83d", "\\ud83d"]', "column 13: [1]: not valid JSON: half of a surrogate pair"),
        ('["\\ude00"]', "half of a surrogate pair"),
        ('{"\\ud83dx": 1}', "column 2: ?x: not valid JSON: half of a surrogate pair"),
        ('{"x": {"a": 1, "b": 2,\n "a": 3}}', 'line 2, column 2: x.a: "a" appears more than once'),
        ('[{"a": {}, "b": {"a": 0, "c": [{"a": 1}]}}, {"\\u0061": 1, "a": 2}]', "column 59: [1].a: "),
        ('["' + "x" * 4097 + '"]', "column 2: [0]: a string of more than 4096 characters"),
        ('{"a": {"' + "é" * 4097 + '": 1}}', "column 8: a." + "é" * 100 + "...: a string of more than 4096"),
        ("[" * 33 + "]" * 33, "column 33: " + "[0]" * 32 + ": nested deeper than 32 levels"),
        ('{"a": ' * 40 + "1" + "}" * 40, "nested deeper than 32 levels"),
        ("[" * 1_990, "column 33: " + "[0]" * 32 + ": nested deeper than 32 levels"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    assert message in refused(text)


@pytest.mark.parametrize(
    "number", ["01", "-01", "+1", ".5", "1.", "1e", "1e+", "-", "0x10", "1_000", "--1", "1.e5", "\u0661"]
)
def test_numbers_that_are_none(number: str) -> None:
    refused(number)
    refused(f"[{number}, 1]")


@pytest.mark.parametrize(
    "raw",
    [b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
     b"\xf5\x80\x80\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80"],
)  # fmt: skip
def test_bytes_that_are_not_utf8(raw: bytes) -> None:
    """Overlong forms, surrogates, beyond U+10FFFF, cut off, stray continuation."""
    assert "line 2, column 3: not UTF-8 text" in refused(b'\n"\xc3\xa9' + raw + b'"')


def test_limits() -> None:
    assert "more than 5 values" in refused("[1, [], {}, 4, 5]", Limits(100, 5))
    assert read('[1, [], {}, "[,,,,]"]', Limits(100, 5)) == [1, [], {}, "[,,,,]"]
    assert "more than 5 values" in refused('{"a": 1, "b": 2, "c": 3}', Limits(100, 5))
    assert read('{"a": 1, "b": "{}[]\\":,"}', Limits(100, 5)) == {"a": 1, "b": '{}[]":,'}
    assert "larger than 3 bytes" in refused("    ", Limits(3, 5))
    assert read("[" * 32 + "]" * 32) and read(f'"{"x" * 4096}"') == "x" * 4096


def test_places_of_fields() -> None:
    parsed = Text(b'{"a.b": {"c": [5,\n {"d": 6}]}, "a": {"b": 7}}', LIMITS)
    for field, place in (
        ("a.b.c[1].d", (2, 8)),  # the longest name that fits
        ("a.b.c[0]", (1, 16)),
        ("a.b.c[2]", (1, 15)),  # not there: what is around it
        ("a.b.x", (1, 9)),
        ("a[0]", (2, 19)),
        ("nothing", (1, 1)),
    ):
        with pytest.raises(FormatError, match="why") as caught:
            parsed.refuse_field(field, "why")
        assert (caught.value.line, caught.value.column, caught.value.field) == (*place, field)


@dataclass(frozen=True)
class Small:
    """A kind of file with every kind of shape."""

    choices: Mapping[str, Annotated[str, OneOf(("NO_SHARD", "FULL_SHARD"))]]
    units: tuple[str, ...]
    batch_size: Annotated[int, AtLeast(1)] | None
    time_s: Annotated[float, AtLeast(0, strictly=True)]
    pair: tuple[bool, object] | None


GOOD = (
    '{"osdp": "small", "version": 1, "choices": {"a.b": "NO_SHARD"}, "units": ["x", ""],\n'
    ' "batch_size": null, "time_s": 2, "pair": [true, -5]}'
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(file_versions.STEPS, "small", ())


def load(text: str) -> Small:
    return json_files.loads("small", Small, text, limits=LIMITS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("null", "3"),
        ("2", "1e-9"),
        ("2", "18446744073709551616"),
        ("[true, -5]", "null"),
        ('{"a.b": "NO_SHARD"}', "{}"),
        ("-5]", '[{"any": [null, 1e3]}]]'),
    ],
)
def test_what_fits_a_schema(old: str, new: str) -> None:
    wanted = json.loads(GOOD.replace(old, new, 1))
    found = load(GOOD.replace(old, new, 1))
    assert found.choices == wanted["choices"] and found.batch_size == wanted["batch_size"]
    assert type(found.time_s) is float and found.time_s == wanted["time_s"]
    assert found.units == ("x", "") and found.pair == (wanted["pair"] and tuple(wanted["pair"]))


@pytest.mark.parametrize(
    ("old", "new", "field", "why"),
    [
        ('"small"', '"hardware"', "osdp", "this is \"hardware\", not an osdp 'small' file"),
        ('"osdp"', '"odsp"', "osdp", "must be a JSON object with a field 'osdp'"),
        ("1,", "2,", "version", "reads up to 1; use a newer osdp"),
        ("1,", "true,", "version", "true is not a version"),
        ("1,", "1.0,", "version", "1.0 is not a version"),
        ('"NO_SHARD"', '"ZDP"', "choices.a.b", '"ZDP" is not one of NO_SHARD, FULL_SHARD'),
        ('"NO_SHARD"', "null", "choices.a.b", "expected text, found null"),
        ('{"a.b": "NO_SHARD"}', "[]", "choices", "expected an object, found a list of 0"),
        ('""]', "5]", "units[1]", "expected text, found 5"),
        ("null", "0", "batch_size", "must be at least 1, got 0"),
        ("null", "1.0", "batch_size", "expected an integer, found 1.0"),
        ("null", "9223372036854775808", "batch_size", "9223372036854775808: the integer does not fit 64 bits"),
        ("null", "-9223372036854775809", "batch_size", "does not fit 64 bits"),
        ("null", "9" * 4200, "batch_size", "does not fit 64 bits"),
        ("2", "0", "time_s", "must be positive, got 0"),
        ("2", "-1e-300", "time_s", "must be positive, got -1e-300"),
        ("2", "false", "time_s", "expected a number, found false"),
        ("2", "9" * 400, "time_s", "does not fit a double"),
        ("[true, -5]", "[true]", "pair", "expected a list of 2, found a list of 1"),
        ("[true, -5]", "[1, -5]", "pair[0]", "expected true or false, found 1"),
        ("-5]", '[{"any": 9223372036854775808}]]', "pair[1][0].any", "does not fit 64 bits"),
        ("-5]", "[" * 31 + "]" * 31 + "]", "pair[1]" + "[0]" * 30, "nested deeper than 32 levels"),
        ('"pair"', '"pears"', "pears", "unknown field"),
        (' "batch_size": null,', "", "batch_size", "missing field"),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_schema(old: str, new: str, field: str, why: str) -> None:
    with pytest.raises(FormatError) as caught:
        load(GOOD.replace(old, new, 1))
    assert caught.value.field == field and f": {field}: " in str(caught.value) and why in str(caught.value)
    line = 1 if field in ("osdp", "version", "choices", "choices.a.b", "units[1]") or not new else 2
    assert caught.value.line == line


PIECES = ["{", "}", "[", "]", ",", ":", '"', "\\", "\\u", "\\ud83d", "-", "0", "1e99", ".", "null", "true", "NaN", "/*",
          "\n", "\udc80", "\0", "1e999", "{}", "[1]", '"a":', "99", "e", " ", "false"]  # fmt: skip


def test_texts_damaged_at_random_are_read_exactly_or_refused_with_a_place() -> None:
    seeds = [
        GOOD.replace('"x"', '"gr\\u00fc", "\\ud83d\\ude00", "😀"'),
        '[[], [0, -1, 18446744073709551616, 1E300], {"a": {"b": [1, {"c": false}]}}, null, "\\n"]',
    ]
    draw, parsed, fitting = random.Random(7), 0, 0
    texts = 6000
    for _ in range(texts):
        text = draw.choice(seeds)
        for _ in range(draw.randint(1, 3)):
            at, length = draw.randrange(len(text) + 1), draw.randint(1, 12)
            begin = draw.randrange(len(text) + 1)
            text = draw.choice([
                text[:at] + chr(draw.randrange(256)) + text[at + 1 :], text[:at] + text[at + length :],
                text[:at] + draw.choice(PIECES) + text[at:], text[:at] + text[begin : begin + length] + text[at:],
                text[:at],
            ])  # fmt: skip
        raw = text.encode("utf-8", "surrogatepass")
        try:
            value = read(raw)
            parsed += 1
            assert read(json.dumps(value)) == value
            load(text)
            fitting += 1
        except FormatError as error:
            assert error.line is not None and 1 <= error.line <= 1 + raw.count(b"\n")
            assert error.column is not None and error.column >= 1
            assert len(str(error)) < 4000
            str(error).encode()  # no half of a surrogate pair
    assert texts / 50 < parsed < texts / 2 and texts / 200 < fitting < parsed  # enough of each
