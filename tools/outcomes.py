"""Writes the table of docs/faults.md from the tests' `outcome` markers; `--check` fails where it is not current.

    @pytest.mark.outcome("`nn.Embedding(max_norm=...)`, sharded", osdp.ShardingError)
    @pytest.mark.outcome("two models of one class, called in another order", osdp.OrderError)
    @pytest.mark.outcome("`model.forward(x)`", "equal")
    @pytest.mark.outcome("writes through `.data` in forward", "not detected: they leave no version behind")

on the test that shows it: what a script does, and "equal" (to one process), the class of the error, or why it is not
detected. A test may have several.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- outcomes: written by tools/outcomes.py -->\n", "<!-- end of outcomes -->\n"


class Collector:
    """Rows in the order of the tests' files: (what a script does, what happens, the test)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = item.nodeid.partition("[")[0]
            for marker in reversed(list(item.iter_markers("outcome"))):
                what, outcome = marker.args
                row = (what, spoken(outcome), test.removeprefix("tests/"))
                if row not in self.rows:
                    self.rows.append(row)


def spoken(outcome: type | str) -> str:
    if isinstance(outcome, type):
        return f"`{outcome.__name__}`"
    if outcome != "equal" and not outcome.startswith(("not detected: ", "a warning: ")):
        raise ValueError(
            f"an outcome is 'equal', an error's class, 'a warning: what to do' or 'not detected: why', not {outcome!r}"
        )
    return outcome


def table() -> str:
    collector = Collector()
    arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", str(ROOT / "tests")]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([*arguments, "--no-header"], plugins=[collector])
    if status != 0:
        print(said.getvalue())
        raise SystemExit(int(status))
    lines = ["| what a script does | what happens | shown by |", "|---|---|---|"]
    for row in collector.rows:
        what, outcome, test = (cell.replace("|", "\\|") for cell in row)
        path, _, name = test.partition("::")
        lines.append(f"| {what} | {outcome} | [`{name}`](../tests/{path}) |")
    return "\n".join(lines) + "\n"


def main() -> None:
    page = PAGE.read_text()
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"{PAGE} has no place for the table: {BEGIN.strip()} ... {END.strip()}")
    rows = table()
    written = pattern.sub(lambda _: BEGIN + "\n" + rows + "\n" + END, page)
    if "--check" in sys.argv[1:]:
        if written != page:
            raise SystemExit("docs/faults.md is not what the tests say: run tools/outcomes.py (make format)")
    else:
        PAGE.write_text(written)


if __name__ == "__main__":
    main()
