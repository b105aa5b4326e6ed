"""The published JSON Schemas, both ways: what is saved fits them, and the reader refuses exactly what they refuse."""

from __future__ import annotations

import copy
import importlib.resources
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import osdp
from osdp.base import file_versions, json_files
from osdp.base.schema import shape_of
from osdp.description.model_description import ModelDescription
from osdp.errors import FormatError
from osdp.hardware.hardware import Hardware, known_machines
from osdp.plan.plan import Plan
from tests.unit.description.nasty_models import GPT
from tests.unit.plan.test_plan import full_plan

SCHEMAS = importlib.resources.files("osdp") / "schemas"  # as an installed package has them
CLASSES: dict[str, type] = {"plan": Plan, "description": ModelDescription, "hardware": Hardware}


def validator(kind: str) -> Any:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    base = jsonschema.Draft202012Validator
    base.check_schema(schema)
    # As the schema's description says: 2.0 is no integer, and neither is true.
    strict = base.TYPE_CHECKER.redefine(
        "integer", lambda _, x: isinstance(x, int) and not isinstance(x, bool)
    )
    return jsonschema.validators.extend(base, type_checker=strict)(schema)


VALIDATORS = {kind: validator(kind) for kind in CLASSES}


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    description = osdp.describe(GPT(), torch.zeros(2, 16, dtype=torch.long))
    searched = [
        osdp.search(description, memory=memory, world_size=ranks, hardware="rtx-titan-8", cost=cost)
        for memory in ("1GiB", "2MiB")
        for ranks in (2, 8)
        for cost in ("osdp", "paper")
    ]
    by_hand = [Plan.uniform(description, mode) for mode in ("NO_SHARD", "FULL_SHARD")]
    return [full_plan(description), *by_hand, *searched]


def test_the_published_schemas_are_current() -> None:
    tool = Path(__file__).parents[3] / "tools" / "schema.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_whatever_is_saved_fits_its_schema(plans: list[Plan]) -> None:
    for plan in plans:
        VALIDATORS["plan"].validate(json.loads(plan.dumps()))
        assert Plan.loads(plan.dumps()) == plan
    VALIDATORS["description"].validate(json.loads(json_files.dumps("description", plans[0].description)))
    for name in known_machines():
        VALIDATORS["hardware"].validate(json.loads(Hardware.load(name).dumps()))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2.0, 0.5, -0.5, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1e300, "", "x", "NO_SHARD",
    "hold", "plan", "x" * 4096, "x" * 4097, [], {}, [1], [1, 2], {"a": 1}, ["x"], {"x" * 4097: 1},
]  # fmt: skip


def mutate(data: Any, draw: Callable[[Any], Any]) -> Any:
    """`data` with one thing changed: a value replaced, a member or item removed, renamed, added or doubled."""
    data = copy.deepcopy(data)
    path = draw(st.sampled_from(list(places(data))))
    node = data
    for step in path[:-1]:
        node = node[step]
    if not path:
        return draw(st.sampled_from(ODD))
    how = draw(st.sampled_from(["replace", "replace", "remove", "add", "rename", "swap"]))
    target = node[path[-1]]
    if how == "remove":
        del node[path[-1]]
    elif how == "rename" and isinstance(node, dict):
        node[draw(st.sampled_from(["x", "", "osdp", "version", "mode"]))] = node.pop(path[-1])
    elif how == "add" and isinstance(target, dict):
        target[draw(st.sampled_from(["x", "", "mode"]))] = draw(st.sampled_from(ODD))
    elif how == "add" and isinstance(target, list):
        target.append(draw(st.sampled_from([*ODD, *target])))
    elif how == "swap":
        other = draw(st.sampled_from(list(places(data))))
        value = data
        for step in other:
            value = value[step]
        node[path[-1]] = copy.deepcopy(value)
    else:
        node[path[-1]] = draw(st.sampled_from(ODD))
    return data


def read(kind: str, text: str) -> bool:
    """Whether the reader takes it as of the newest version, rules that no schema can state left out."""
    try:
        json_files.loads(kind, CLASSES[kind], text)
    except FormatError as error:
        assert error.line is not None and error.line >= 1 and error.column is not None
        return False
    return bool(json.loads(text)["version"] == file_versions.newest(kind))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_the_reader_takes_exactly_what_the_schema_takes(plans: list[Plan], data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(plans[:3]))
    document = json.loads(plan.dumps())
    document["description"]["operators"] = document["description"]["operators"][:3]
    for _ in range(data.draw(st.integers(1, 3))):
        document = mutate(document, data.draw)
    assert read("plan", json.dumps(document)) == VALIDATORS["plan"].is_valid(document)


@pytest.mark.parametrize("kind", ["hardware", "plan"])
def test_every_field_replaced_by_every_odd_value(plans: list[Plan], kind: str) -> None:
    value = Hardware.load("a100-8") if kind == "hardware" else plans[0]
    document = json.loads(value.dumps())
    if kind == "plan":
        document["description"]["operators"] = document["description"]["operators"][:1]
        document["choices"] = dict(list(document["choices"].items())[:1])
        document["units"] = document["units"][:1]
    refused = taken = 0
    # Of a list's items the last one of each shape.
    different = {
        tuple("item" if type(step) is int else step for step in path): path for path in places(document)
    }
    for path in list(different.values())[1:]:
        for odd in random.Random(str(path)).sample(ODD, 6 if kind == "hardware" else 3):
            changed = copy.deepcopy(document)
            node = changed
            for step in path[:-1]:
                node = node[step]
            node[path[-1]] = odd
            text = json.dumps(changed)
            reads = read(kind, text)
            assert reads == VALIDATORS[kind].is_valid(changed), (path, odd)
            taken += reads
            refused += not reads
    assert taken > 30 and refused > 100


def test_an_annotation_that_no_file_can_hold_is_told() -> None:
    @dataclass(frozen=True)
    class Odd:
        anything: set[int]

    with pytest.raises(TypeError, match="anything"):
        shape_of(Odd)


def strict(text: str) -> Any:
    """Python's own json, as strict as it can be made."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("repeated")
        return dict(pairs)

    def refuse(word: str) -> Any:
        raise ValueError(word)

    def finite(digits: str) -> float:
        number = float(digits)
        lost = number == 0 and any(c in "123456789" for c in digits.lower().partition("e")[0])
        if lost or number in (float("inf"), -float("inf")):
            raise ValueError(digits)  # too small or too large for a double
        return number

    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_comes_back_as_python_wrote_it(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    again = json_files.parse(text)
    assert again == value and json.dumps(again) == json.dumps(value)  # 1 and 1.0, -0.0 and 0.0 are told apart


@settings(max_examples=200, deadline=None)
@given(JSON, st.data())
def test_damaged_text_is_refused_where_python_refuses_it(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 3))
    piece = data.draw(st.text('{}[]",:\\u0123456789eE.+-tfn \n', max_size=3))
    text = text[:at] + piece + text[at + length :]
    try:
        expected = strict(text)
        expected_text = json.dumps(expected)
        expected_text.encode("utf-8")
        halves = any("\ud800" <= c <= "\udfff" for c in json.dumps(expected, ensure_ascii=False))
    except ValueError:
        with pytest.raises(FormatError):
            json_files.parse(text)
        return
    if halves or any(isinstance(x, int) and not -(2**63) <= x < 2**63 for x in numbers(expected)):
        return
    assert json.dumps(json_files.parse(text)) == expected_text


def numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    else:
        yield value
