"""Files of every version since the first release are read; a step for each upgrades them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import osdp
from osdp.base import file_versions, json_files
from osdp.description.model_description import ModelDescription
from osdp.errors import FormatError
from osdp.hardware.hardware import Hardware, known_machines
from osdp.plan.parallel_plan import ParallelPlan
from osdp.plan.plan import Plan
from osdp.plan.searched import COST_VERSION
from osdp.planning.verify import verify

# KIND-VERSION.json, as an OSDP of that time wrote it.
FILES = Path(__file__).parents[2] / "data" / "files"
LOAD: dict[str, Callable[[Any], Any]] = {
    "plan": Plan.load,
    "parallel-plan": ParallelPlan.load,
    "description": ModelDescription.load,
    "hardware": Hardware.load,
}
NAMES = sorted(path.name for path in FILES.glob("*.json"))


def document(name: str) -> Any:
    return json.loads((FILES / name).read_text())


def test_there_is_a_file_of_every_version_of_every_kind() -> None:
    assert {*LOAD, "checkpoint"} == set(file_versions.STEPS)
    assert set(NAMES) == {
        f"{kind}-{n}.json" for kind in LOAD for n in range(1, file_versions.newest(kind) + 1)
    }
    for name in NAMES:
        kind, _, version = name.removesuffix(".json").rpartition("-")
        assert (document(name)["osdp"], document(name)["version"]) == (kind, int(version))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_every_version_loads_and_says_the_same(name: str) -> None:
    kind = name.rpartition("-")[0]
    value = LOAD[kind](FILES / name)
    text = json_files.dumps(kind, value)
    assert json.loads(text)["version"] == file_versions.newest(kind)
    if document(name)["version"] == file_versions.newest(kind):
        assert json.loads(text) == document(name)
    assert json_files.loads(kind, type(value), text) == value


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("plan-")])
def test_a_plan_of_every_version_verifies_or_is_of_older_costs(name: str) -> None:
    plan = Plan.load(FILES / name)
    assert plan.searched is not None
    if plan.searched.cost_version == COST_VERSION:
        assert verify(plan) == ""
    else:
        with pytest.raises(osdp.PlanMismatchError, match=r"cost version \d"):
            verify(plan)


@dataclass(frozen=True)
class Note:
    """A kind of file of which version 2 added `author`."""

    author: str
    count: int


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> None:
    def note_1(old: dict[str, Any]) -> dict[str, Any]:
        if len(old["count"] if isinstance(old["count"], list) else [1]) != 1:
            raise ValueError("no count")
        return {"author": "", **old}

    monkeypatch.setitem(file_versions.STEPS, "note", (note_1,))


@pytest.mark.usefixtures("notes")
def test_a_file_of_an_older_version_is_upgraded_when_it_is_read() -> None:
    assert json_files.loads("note", Note, '{"osdp": "note", "version": 1, "count": 3}') == Note("", 3)
    new = json_files.dumps("note", Note("me", 3))
    assert json.loads(new)["version"] == 2 and json_files.loads("note", Note, new) == Note("me", 3)
    with pytest.raises(FormatError, match="author"):  # only older files may lack it
        json_files.loads("note", Note, '{"osdp": "note", "version": 2, "count": 3}')
    with pytest.raises(FormatError, match="colour"):
        json_files.loads("note", Note, '{"osdp": "note", "version": 1, "count": 3, "colour": 0}')


@pytest.mark.usefixtures("notes")
def test_an_error_in_an_old_file_says_the_line_of_that_file() -> None:
    with pytest.raises(FormatError) as caught:
        json_files.loads("note", Note, '{"osdp": "note",\n "version": 1,\n "count": "many"}')
    assert (caught.value.field, caught.value.line, caught.value.column) == ("count", 3, 11)
    assert str(caught.value).startswith("line 3, column 11: count: expected an integer")
    for damaged in ('"count": []', '"other": 1'):  # upgrading itself stumbles
        with pytest.raises(FormatError, match=r"line 1, column 1.*'note'"):
            json_files.loads("note", Note, f'{{"osdp": "note", "version": 1, {damaged}}}')


@pytest.mark.parametrize("kind", LOAD)
def test_a_newer_version_is_refused(tmp_path: Path, kind: str) -> None:
    new = document(f"{kind}-{file_versions.newest(kind)}.json")
    new["version"] += 1
    new["invented_later"] = 1
    path = tmp_path / "new.json"
    path.write_text(json.dumps(new))
    with pytest.raises(FormatError, match="use a newer osdp") as caught:
        LOAD[kind](path)
    assert caught.value.field == "version"


def test_known_machines_are_of_the_newest_version() -> None:
    folder = Path(osdp.__file__).parent / "hardware" / "machines"
    for name in known_machines():
        assert json.loads((folder / f"{name}.json").read_text())["version"] == file_versions.newest(
            "hardware"
        )


def test_a_link_stays_one_and_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    hardware = Hardware.load("a100-8")
    (tmp_path / "real.json").write_text("old")
    os.symlink("real.json", tmp_path / "latest.json")
    hardware.save(tmp_path / "latest.json")
    assert (tmp_path / "latest.json").is_symlink() and Hardware.load(tmp_path / "real.json") == hardware
    reading, writing = os.pipe()
    os.symlink(f"/dev/fd/{writing}", tmp_path / "pipe")
    hardware.save(tmp_path / "pipe")
    os.close(writing)
    with os.fdopen(reading) as file:
        assert Hardware.loads(file.read()) == hardware
