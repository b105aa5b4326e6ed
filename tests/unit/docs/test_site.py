"""The site: its home page, its list of pages, examples as code, and versions that are true."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import tomllib
from pathlib import Path

import pytest

import osdp
from osdp.base import file_versions

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()


def ten_lines(page: str) -> str:
    return re.findall(r"```python\n(import torch, osdp\n.*?)```", page, re.DOTALL)[0]


def test_the_home_page_begins_with_what_osdp_is_and_has_the_picture_and_the_ten_lines() -> None:
    first = INDEX.split("\n\n")[1]
    assert "PyTorch" in first and "per operator" in first and "](" not in first
    assert "](gain.svg)" in INDEX and ten_lines(INDEX) == ten_lines(README)
    assert INDEX.index("gain.svg") < INDEX.index("import torch, osdp") < INDEX.index("| page |")


def test_the_home_page_lists_every_page() -> None:
    listed = set(re.findall(r"^\| \[(.*?)\]", INDEX, re.MULTILINE))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} == listed


def test_diagrams_and_outputs_of_the_home_page_are_not_cut_off() -> None:
    code = [line for line in INDEX.splitlines() if line.startswith("    ")]
    assert code and max(map(len, code)) <= 88
    assert max(map(len, ten_lines(INDEX).splitlines())) <= 98


@pytest.mark.parametrize("name", re.findall(r"^::: (\S+)$", API, re.MULTILINE))
def test_examples_of_docstrings_are_code(name: str) -> None:
    as_code = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))["as_code"]
    if name == "osdp.errors":
        documented = [v for v in vars(osdp.errors).values() if inspect.isclass(v)]
    else:
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        documented = (
            [value, *(v for v in vars(value).values() if inspect.isfunction(v))]
            if inspect.isclass(value)
            else [value]
        )
    for value in documented:
        text = as_code(inspect.getdoc(value) or "")
        outside = re.sub(r"```pycon\n.*?\n```", "", text, flags=re.DOTALL)
        assert ">>>" not in outside and text.count("```") % 2 == 0


def test_fields_are_documented_by_their_comments() -> None:
    field_comment = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))["field_comment"]
    lines = [
        "class A:",
        "    a: int = 1  # per rank",
        "    # In bytes; 0:",
        "    # none.",
        "    b: int = 0",
        "    c: int",
    ]
    assert [field_comment(lines, i, i + 1) for i in (1, 4, 5)] == ["Per rank.", "In bytes; 0: none.", ""]


def test_the_search_is_hidden_where_it_does_not_work() -> None:
    assert 'location.protocol === "file:"' in (ROOT / "docs" / "site" / "site.js").read_text()
    assert ".from-disk .md-search" in (ROOT / "docs" / "site" / "site.css").read_text()
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "site/site.js" in settings and "site/site.css" in settings


def test_versions_that_pages_state_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = [int(found[1]) for c in project["classifiers"] if (found := re.search(r":: 3\.(\d+)$", c))]
    minors = runpy.run_path(str(ROOT / "tools" / "wheel" / "torch_requirement.py"))["MINORS"]
    said = " ".join(README.split())
    assert f"Python 3.{pythons[0]} or newer" in said and f"Python 3.{pythons[0]} to 3.{pythons[-1]}" in said
    assert f"torch {minors[0][0]}.{minors[0][1]} to {minors[-1][0]}.{minors[-1][1]}" in said
    stated = {
        (page.name, kind, int(version))
        for page in (ROOT / "docs").glob("*.md")
        for kind, version in re.findall(r'"osdp": "(\w+)", "version": (\d+)', page.read_text())
    }
    assert stated and stated == {(page, kind, file_versions.newest(kind)) for page, kind, _ in stated}


def test_links_to_pages_show_their_titles() -> None:
    site = runpy.run_path(str(ROOT / "tools" / "docs_site.py"))
    nav = [{"OSDP": "index.md"}, {"Use": [{"The first hour": "first-hour.md"}]}]
    text = "[first-hour.md](first-hour.md), [plan](plan.md), [first-hour.md](first-hour.md#killed), [a test](../tests/x.py)"
    assert site["on_page_markdown"](text, config={"nav": nav}) == (
        "[The first hour](first-hour.md), [plan](plan.md), [The first hour](first-hour.md#killed), a test"
    )
