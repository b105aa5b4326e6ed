"""Fails where a folder of csrc/search includes one that stands below it in the table of docs/search.md (Folders), or
where a folder is in only one of the two. Run by `make lint`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEARCH = ROOT / "csrc" / "search"


def order() -> list[str]:
    section = (ROOT / "docs" / "search.md").read_text().split("\n## Folders\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def wrong_includes(folders: list[str]) -> list[str]:
    wrong = []
    for path in sorted(SEARCH.rglob("*.[hc]pp")):
        own = path.relative_to(SEARCH).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'#include "(\w+)/(\w+)', line)
            where = f"{path.relative_to(ROOT)}:{number}"
            if found and found[1] != "search":
                wrong.append(f"{where}: csrc/search includes only itself, and this is {found[1]}")
            elif found and folders.index(found[2]) > folders.index(own):
                wrong.append(f"{where}: {own} stands above {found[2]}, so it must not include it")
    return wrong


def main() -> int:
    folders = order()
    there = sorted(path.name for path in SEARCH.iterdir())
    if there != sorted(folders):
        print(f"csrc/search holds {there}; the table of docs/search.md lists {sorted(folders)}")
        return 1
    wrong = wrong_includes(folders)
    print("\n".join(wrong) or f"includes of csrc/search follow {' <- '.join(folders)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
