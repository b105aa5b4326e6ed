"""The notebook in examples/ runs, and shows what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

KINDS = ("text/plain", "text/html")
TOOL = Path(__file__).parents[3] / "tools" / "notebook.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("osdp_tools_notebook", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def executed() -> Any:
    tool = load_tool()
    return tool.execute(tool.make())


def outputs(book: Any, part: str) -> list[Any]:
    (cell,) = [c for c in book.cells if c.cell_type == "code" and part in c.source]
    return [o for o in cell.outputs if o.get("name") != "stderr"]


def test_the_checked_in_notebook_has_the_scripts_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load_tool()
    monkeypatch.setattr("sys.argv", ["notebook.py", "--check"])
    assert tool.main() == 0
    text = tool.NOTEBOOK.read_text()
    assert '"image/png"' in text and '"text/html"' in text, "it is checked in with its outputs"


def words(book: Any) -> list[str]:
    """Of each code cell: its outputs but for pictures. A loaded kernel may send one line in two parts."""

    def shown(output: Any) -> str:
        if "text" in output:
            return str(output["text"])
        return "".join(text for kind, text in sorted(output["data"].items()) if kind in KINDS)

    cells = (c for c in book.cells if c.cell_type == "code")
    return ["".join(shown(o) for o in c.outputs if o.get("name") != "stderr") for c in cells]


@pytest.mark.extras  # a kernel's start, and all searches of the example
def test_its_outputs_are_those_that_are_checked_in(executed: Any) -> None:
    """If they should differ: run tools/notebook.py, read what it writes, and commit it."""
    stored = load_tool().nbformat.read(load_tool().NOTEBOOK, 4)
    for now, then in zip(words(executed), words(stored), strict=True):
        assert now == then


@pytest.mark.extras
def test_every_cell_shows_what_it_should(executed: Any) -> None:
    (described,) = outputs(executed, "GPT2Config(")
    assert "5.80 GiB" in described["data"]["text/plain"]
    (plan,) = outputs(executed, "plan = osdp.search")
    assert "47 equal blocks" in plan["data"]["text/html"] and "peak memory" in plan["data"]["text/plain"]
    (verified,) = outputs(executed, "osdp.verify")
    assert verified["data"]["text/plain"] == "''"
    (explained,) = outputs(executed, "plan.explain")
    for title in ("Why each choice", "Plans of one mode", "The next 1.00 GiB", "Why a batch of"):
        assert title in explained["text"]
    table, picture = outputs(executed, "plan.frontier")
    assert table["text"].count("GiB") >= 16 and "image/png" in picture["data"]
    (difference,) = outputs(executed, "everything.diff")
    assert "FULL_SHARD -> NO_SHARD" in difference["text"] and "throughput" in difference["text"]
