"""docs/behaviours.md names tests and errors that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import osdp

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "behaviours.md").read_text().partition("\n## ")[0]
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)[1:]
# What the three classes' public suites are about.
SUBJECTS = (
    "freezing|shared parameters|accumulation|clipping|inputs|ignored modules|does not divide|state dicts|optimizer state|"
    "summoning|`apply`|meta device|hooks|mixed precision per part|nested wraps|on a leaf and around a container|pickling"
)


@pytest.mark.parametrize(("behaviour", "outcome", "tests"), ROWS)
def test_each_behaviour_names_its_tests(behaviour: str, outcome: str, tests: str) -> None:
    links = re.findall(r"\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)", tests)
    assert links and len(links) == tests.count("](")
    for name, path in links:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), name
    for error in re.findall(r"\w+Error", outcome):
        assert issubclass(getattr(osdp, error), osdp.OSDPError)


def test_every_subject_of_the_suites_is_there() -> None:
    behaviours = "; ".join(behaviour for behaviour, _, _ in ROWS)
    assert [s for s in SUBJECTS.split("|") if s not in behaviours] == []
