"""Files of every version are read for ever; `osdp upgrade` rewrites them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import osdp
from osdp.base import file_versions, json_files
from osdp.cli.main import main
from osdp.description.model_description import ModelDescription
from osdp.errors import FormatError
from osdp.hardware.hardware import Collective, Hardware, known_machines
from osdp.plan.plan import Plan
from osdp.plan.searched import COST_VERSION
from osdp.planning.verify import verify

# KIND-VERSION.json, as an OSDP of that time wrote it; KIND-1-first.json by the first that had the kind, before some
# fields. What loads once loads for ever: a change that breaks one of these needs a step in osdp/base/file_versions.py.
FILES = Path(__file__).parents[2] / "data" / "files"
LOAD: dict[str, Callable[[Any], Any]] = {
    "plan": Plan.load,
    "description": ModelDescription.load,
    "hardware": Hardware.load,
}
NAMES = sorted(path.name for path in FILES.glob("*.json"))


def document(name: str) -> Any:
    return json.loads((FILES / name).read_text())


# Of the proof of a sum over operators, which no search makes any more.
MEANINGLESS = tuple(
    f"{change} {field}"
    for change, fields in (
        ("removed", ("searched.replay", "searched.exposed", "certificate.")),
        ("changed", ("certificate",)),
    )
    for field in fields
)


def test_there_is_a_file_of_every_version_of_every_kind() -> None:
    assert set(LOAD) <= set(file_versions.STEPS)
    for kind in LOAD:
        assert {f"{kind}-{n}.json" for n in range(1, file_versions.newest(kind) + 1)} <= set(NAMES)
    for name in NAMES:
        kind, version = name.removesuffix(".json").split("-")[:2]
        assert (document(name)["osdp"], document(name)["version"]) == (kind, int(version))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_every_version_loads_and_says_the_same(name: str) -> None:
    kind = name.partition("-")[0]
    value = LOAD[kind](FILES / name)
    again = json.loads(json_files.dumps(kind, value))
    assert again["version"] == file_versions.newest(kind)
    lost = [
        c
        for c in file_versions.what_changed(document(name), again)
        if not c.startswith(("added ", *MEANINGLESS))
    ]
    assert lost == ([] if again["version"] == document(name)["version"] else ["changed version"])
    assert json_files.loads(kind, type(value), json_files.dumps(kind, value)) == value


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("plan-") and "first" not in n])
def test_a_plan_of_every_version_verifies_or_is_of_older_costs(name: str) -> None:
    plan = Plan.load(FILES / name)
    assert plan.searched is not None
    if plan.searched.cost_version == COST_VERSION:
        assert verify(plan) == ""
    else:
        with pytest.raises(osdp.PlanMismatchError, match=r"of cost version \d.*search again"):
            verify(plan)


def test_of_an_older_certificate_the_bound_on_the_step_remains() -> None:
    old, new = document("plan-14.json")["certificate"], Plan.load(FILES / "plan-14.json").certificate
    assert new is not None and (new.step_ps, new.step_bound_ps) == (old["step_ps"], old["step_bound_ps"])
    assert new.batches == () and new.checked_bound_ps == 0
    assert Plan.load(FILES / "plan-1.json").certificate is None  # of a sum over operators


def test_what_an_old_file_lacks_has_the_value_that_it_had_then() -> None:
    hardware = Hardware.load(FILES / "hardware-1-first.json")
    assert hardware.between_hosts is None and hardware.exposed_communication == 1.0
    assert hardware.measured is None and hardware.recompute_slowdown == 1.0
    assert hardware.communication_delay == Collective(0.0, 0.0) and hardware.stolen_computation == 0.0
    plan = document("plan-1.json")
    plan["hardware"] = document("hardware-1-first.json")
    del plan["hardware"]["osdp"], plan["hardware"]["version"], plan["searched"]["replay"]
    del plan["description"]["output_bytes_per_sample"]
    old = Plan.loads(json.dumps(plan))
    assert old.hardware == hardware
    assert old.searched is not None and old.searched.gap == 0.0
    assert old.description.output_bytes_per_sample == 0
    assert all(o.work_bytes_per_sample == o.work_bytes_fixed == 0 for o in old.description.operators)


def test_what_every_version_had_may_not_lack() -> None:
    for name, field in (
        ("plan-1.json", "units"),
        ("hardware-1.json", "all_reduce"),
        ("plan-1.json", "searched"),
    ):
        old = document(name)
        del old[field]
        with pytest.raises(FormatError, match=field):
            json_files.loads(old["osdp"], {"plan": Plan, "hardware": Hardware}[old["osdp"]], json.dumps(old))


def test_an_error_in_an_old_file_says_the_line_of_that_file() -> None:
    text = (FILES / "plan-1.json").read_text()
    line = text[: text.index('"batch_size": ')].count("\n") + 1
    with pytest.raises(FormatError) as caught:
        Plan.loads(text.replace('"batch_size": ', '"batch_size": -', 1))
    assert (caught.value.field, caught.value.line) == ("batch_size", line)
    assert f"line {line}, column {caught.value.column}: batch_size: must be" in str(caught.value)
    for damaged in ("3", "[1]", '"text"'):  # upgrading itself stumbles
        with pytest.raises(FormatError, match="line 1, column 1: the osdp 'plan' file is damaged"):
            Plan.loads(f'{{"osdp": "plan", "version": 1, "description": {damaged}}}')


@pytest.mark.parametrize("kind", LOAD)
def test_a_newer_version_is_refused_and_not_touched(tmp_path: Path, kind: str, capsys: Any) -> None:
    new = document(f"{kind}-{file_versions.newest(kind)}.json")
    new["version"] += 1
    new["invented_later"] = 1
    path = tmp_path / "new.json"
    path.write_text(json.dumps(new))
    with pytest.raises(FormatError, match="use a newer osdp") as caught:
        LOAD[kind](path)
    assert caught.value.field == "version"
    assert main(["upgrade", str(path)]) == 2
    assert "use a newer osdp" in capsys.readouterr().err
    assert json.loads(path.read_text()) == new


def test_upgrade_rewrites_a_file_in_place_and_says_what_changed(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes((FILES / "plan-1-first.json").read_bytes())
    path.chmod(0o640)
    before = Plan.load(path)
    assert main(["upgrade", str(path)]) == 0
    said = capsys.readouterr().out
    added = (
        "added description.operators[].work_bytes_per_sample, added description.operators[].work_bytes_fixed, "
        "added description.operators[].forward_kernels, added description.operators[].backward_kernels, "
        "added description.output_bytes_per_sample, added description.blocks_changing_inputs, "
        "added description.precision, added description.kernels, added gather_bytes, "
        "added separate_reductions"
    )
    assert said == f"{path}: plan, version 1 to 15: {added}\n"
    assert json.loads(path.read_text())["version"] == 15
    assert Plan.load(path) == before and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert main(["upgrade", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: plan, version 15: up to date\n"
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_upgrade_of_a_directory_takes_what_is_osdp_s(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "here.json").write_bytes((FILES / "hardware-1-first.json").read_bytes())
    (tmp_path / "model.json").write_bytes((FILES / "description-1.json").read_bytes())
    for name, text in (("config.json", '{"hidden_size": 8}'), ("broken.json", "{"), ("notes.txt", "hello")):
        (tmp_path / name).write_text(text)
    os.symlink(tmp_path / "model.json", tmp_path / "link.json")
    assert main(["upgrade", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        len(said) == 3 and "between_hosts" in said[2]
    )  # the link leads to a file that is new by then, or was
    assert (tmp_path / "link.json").is_symlink()
    assert Hardware.load(tmp_path / "runs" / "here.json").stolen_computation == 0.0
    assert (tmp_path / "broken.json").read_text() == "{"


def test_upgrade_refuses_what_is_not_osdp_s(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert main(["upgrade", str(tmp_path / "config.json")]) == 2
    assert "not a file that OSDP writes" in capsys.readouterr().err
    assert main(["upgrade", str(tmp_path / "nowhere")]) == 2
    assert "neither a file nor a directory" in capsys.readouterr().err


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
