"""Fails where a folder of csrc/ includes one that stands below it in its table (docs/search.md and docs/runtime.md,
Folders), where a folder is in only one of the two, or where a checker includes what it checks. Run by `make lint`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

# What a checker may share with what it checks: values, and what is refused.
CHECKER = "search/certificate"
SHARED = {f"search/problem/{name}.hpp" for name in ("model", "request", "plain_plan", "problem", "validate")}

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"


def table(page: str, inside: str = "") -> list[str]:
    """Folders of csrc/ in the order of a page's table, whose rows may name folders of `inside`."""
    rows = (
        (ROOT / "docs" / page)
        .read_text()
        .split("\n## Folders\n")[1]
        .split("\n| folder |")[1]
        .split("\n\n")[0]
    )
    return [inside + name for name in re.findall(r"^\| `([\w/]+)` \|", rows, flags=re.MULTILINE)]


def row_of(path: str, order: list[str]) -> str | None:
    """The row that a file of csrc/ belongs to: the folder that it is in, or the nearest one above."""
    rows = [row for row in order if path.startswith(f"{row}/")]
    return max(rows, key=len, default=None)


def missing(order: list[str]) -> list[str]:
    """Folders of the table that are not there, and files of its rooms that no row holds."""
    rooms = {row.partition("/")[0] for row in order}
    files = [str(path.relative_to(CSRC)) for room in rooms for path in (CSRC / room).rglob("*.[hc]pp")]
    gone = [
        f"csrc/{row} has no files" for row in order if not any(row_of(file, order) == row for file in files)
    ]
    return gone + [
        f"csrc/{file} is in no folder of the table" for file in files if row_of(file, order) is None
    ]


def wrong_includes(order: list[str]) -> list[str]:
    wrong = []
    for room in sorted({row.partition("/")[0] for row in order}):
        for path in sorted((CSRC / room).rglob("*.[hc]pp")):
            own = row_of(str(path.relative_to(CSRC)), order)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                included = re.match(r'#include "(\w+/[\w/.]+)"', line)
                if not included or own is None:
                    continue
                other = row_of(included[1], order)
                where = f"{path.relative_to(ROOT)}:{number}"
                if other is None:
                    wrong.append(f"{where}: {included[1]} is in no folder that {own} may include")
                elif own == CHECKER and other != CHECKER and included[1] not in SHARED:
                    wrong.append(f"{where}: {included[1]} is code of the search, which {own} checks")
                elif order.index(other) > order.index(own):
                    wrong.append(f"{where}: {own} stands above {other}, so it must not include it")
    return wrong


def main() -> int:
    failed = 0
    for order in (table("search.md", inside="search/"), table("runtime.md")):
        wrong = missing(order) or wrong_includes(order)
        print("\n".join(wrong) or f"includes follow {' <- '.join(order)}")
        failed |= bool(wrong)
    return failed


if __name__ == "__main__":
    sys.exit(main())
