"""The documentation says what is so: error messages that exist, every public name, commands and options that are known."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

import osdp
from osdp.cli.parser import make_parser

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def sources() -> str:
    """All text in the source, with literals that are written over several lines as one."""
    files = [*(ROOT / "osdp").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp"), *(ROOT / "csrc").rglob("*.hpp")]
    return re.sub(r'"\s*f?"', "", "\n".join(file.read_text() for file in files))


def test_every_message_of_the_troubleshooting_page_exists() -> None:
    text, page = sources(), (ROOT / "docs" / "troubleshooting.md").read_text()
    ours = page[: page.index("## From torch")]
    messages = re.findall(r"^\| `([^`]+)`", ours, re.MULTILINE)
    assert len(messages) > 25
    assert [message for message in messages if message not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_wraps_at_120_characters(page: Path) -> None:
    """Tables and code are as wide as they are."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    assert [line for line in prose if len(line) > 120 and not line.startswith(("|", "    "))] == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    named = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith(":::")}
    errors = {name for name in osdp.__all__ if name.endswith(("Error", "Warning"))}
    assert "osdp.errors" in page and set(osdp.__all__) - errors - named == set()
    for line in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        module, _, name = line.rpartition(".")
        if name in osdp.__all__:
            assert getattr(osdp, name).__module__ == module, line


COMMANDS = [
    (page.name, command)
    for page in PAGES
    for line in re.findall(r"^    (osdp .*)$", page.read_text(), re.MULTILINE)
    for command in re.sub(r"\s+#.*|\\$", "", line).split("; ")
    if command.startswith("osdp ") and "..." not in command
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_of_the_pages_are_understood(page: str, command: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        try:
            make_parser().parse_args(shlex.split(command)[1:])
        except SystemExit as ended:
            assert ended.code == 0, told.getvalue()


def test_the_pages_have_commands() -> None:
    assert len(COMMANDS) > 10


def test_the_site_has_every_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and page.name not in site] == []


def test_each_line_of_the_first_table_is_explained() -> None:
    """Columns and labels of a plan and of a report, as they are printed now and as the page shows them."""
    from osdp.base.printed import plain
    from osdp.sharding.report_value import Report
    from tests.unit.gpt_descriptions import gpt

    page = (ROOT / "docs" / "first-hour.md").read_text()
    explained = set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    plan = osdp.search(gpt(2, 64), memory="4GiB", world_size=2, hardware="a100-8", batch_size=1)
    sliced = plan.replace({"h.0.mlp.fc": osdp.Choice("FULL_SHARD", 4, 2, "out")})
    text = plain(plan, 120)
    columns = next(line.split() for line in text.splitlines() if line.startswith("operator"))
    columns += next(line.split() for line in plain(sliced, 120).splitlines() if line.startswith("operator"))
    labels = re.findall(r"^(\S+(?: \S+)?)  +\S", text[text.index("\npeak memory") :], re.MULTILINE)
    assert {*columns, *labels} <= explained and labels == ["peak memory", "step time", "proof"]
    report = plain(Report(0.1, 0.2, 1, 1, 9, predicted_step_time_now_s=0.2), 120).splitlines()[1:-2]
    assert {line[:14].rstrip() for line in report} <= explained
