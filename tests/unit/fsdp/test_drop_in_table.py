"""docs/drop-in.md names every argument and method of the three classes, as the installed torch has them, with a test."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from torch.distributed import fsdp as torch_fsdp

import osdp
from osdp.fsdp.arguments import HARMLESS, ORDERS, REFUSED
from osdp.fsdp.options import Options

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "drop-in.md"
STATUS = ("done", "harmless", "refused", "not yet")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    owners: tuple[str, ...]
    status: str
    test: str


def rows(section: str) -> list[Row]:
    text = TABLE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([\w ]+) \|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    return [
        Row(n, tuple(o.strip() for o in owners.split(",")), s.strip(), t.strip()) for n, owners, s, t in found
    ]


def named(section: str, owner: str) -> set[str]:
    return {row.name for row in rows(section) if owner in row.owners}


def test_every_argument_of_torchs_class_is_in_the_table():
    theirs = list(inspect.signature(torch_fsdp.FullyShardedDataParallel.__init__).parameters)[1:]
    assert named("Arguments", "FSDP1") == set(theirs)
    assert ORDERS["torch's FSDP"] == tuple(theirs[2:])


def test_every_argument_of_fairscales_class_is_in_the_table():
    """ORDERS has those of FairScale 0.4.13, its last release."""
    assert named("Arguments", "FairScale") == {"module", "process_group", *ORDERS["FairScale"]}


def test_the_table_says_what_the_code_does():
    status = {row.name: row.status for row in rows("Arguments")}
    assert {n for n, s in status.items() if s == "harmless"} == HARMLESS
    assert {n for n, s in status.items() if s == "refused"} == set(REFUSED)
    fields = {f.name for f in dataclasses.fields(Options)}
    assert {n for n, s in status.items() if s == "done"} == {"module", *fields}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_method_of_torchs_class_is_in_the_table():
    assert named("Methods", "FSDP1") == public(torch_fsdp.FullyShardedDataParallel)


def test_every_argument_and_method_of_torchs_function_is_in_the_table():
    theirs = set(inspect.signature(torch_fsdp.fully_shard).parameters)
    assert named("fully_shard", "FSDP2") == theirs <= set(inspect.signature(osdp.fully_shard).parameters)
    assert named("FSDPModule", "FSDP2") == public(torch_fsdp.FSDPModule)
    status = {row.name: row.status for row in rows("FSDPModule")}
    written = {name: getattr(osdp.FSDPModule, name).__doc__ for name in status}
    assert {n for n, s in status.items() if s == "harmless"} == {
        n for n, text in written.items() if text.startswith("Accepted, without effect: the plan")
    }
    assert {n for n, s in status.items() if s == "refused"} == {
        n for n, text in written.items() if text.startswith("Not supported")
    }
    assert status.keys() == public(osdp.FSDPModule)


def test_what_the_table_says_is_there_is_there():
    ours = osdp.FullyShardedDataParallel
    there = {row.name for row in rows("Methods") if row.status in ("done", "harmless")}
    assert {n for n in there if not hasattr(ours, n)} == {"module", "cpu_offload"}  # attributes of instances


ALL = [row for section in ("Arguments", "Methods", "fully_shard", "FSDPModule") for row in rows(section)]


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.name)
def test_each_row_names_a_test_that_is_there(row):
    assert row.status in STATUS
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)", row.test)
    assert links or row.status == "not yet"
    for name, path in links:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
