"""Writes docs/code.md: the first sentence of every header in csrc, by folder. `--check` fails where the page lacks a header
or has one that is gone; sentences are brought up to date by `make format` and `make docs`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "code.md"
ROW = re.compile(r"^\| (`.*?`) \|", re.MULTILINE)
HEAD = """# The C++ code, header by header

What each header of `csrc` begins with; the rest of that comment is its documentation: invariants, units, errors, and
titled notes on what took thought. How the folders fit together: [the home page](index.md#how-it-fits-together).
`tools/headers.py` writes this page.
"""
# In the order of layers: each folder includes from those above it alone (tools/include_order.py).
FOLDERS = {
    ".": "what all share",
    "search": "the search ([algorithm](algorithm.md)); the standard library alone",
    "elementwise": "arithmetic on arrays in host memory; no torch",
    "ops": "products, look-ups and convolutions in slices ([splitting](splitting.md))",
    "faults": "what ranks know of each other ([faults](faults.md)); no torch",
    "comm": "communication of one process group ([runtime](runtime.md))",
    "runtime": "the training steps of a sharded model ([runtime](runtime.md))",
    "bindings": "what Python calls",
}


def first_sentence(header: Path) -> str:
    comment: list[str] = []
    for line in header.read_text().splitlines():
        text = line.removeprefix("//").strip()
        if line.startswith("//") and text:
            comment.append(text)
        elif comment:
            break
    text = re.sub(r"^Note \[([^]]+)\] ", r"\1: ", " ".join(comment))
    found = re.match(r".*?\.(?= [A-Z(]|$)", text)
    return (found[0] if found else text).replace("|", "\\|")


def page() -> str:
    parts = [HEAD]
    headers = sorted((ROOT / "csrc").rglob("*.hpp"))
    for folder, what in FOLDERS.items():
        inside = [h.relative_to(ROOT / "csrc") for h in headers]
        inside = [h for h in inside if (h.parts[0] if len(h.parts) > 1 else ".") == folder]
        rows = [f"| `{h.relative_to(folder)}` | {first_sentence(ROOT / 'csrc' / h)} |" for h in inside]
        title = "csrc" if folder == "." else f"csrc/{folder}"
        parts.append(
            f"\n## {title}\n\n{what[0].upper()}{what[1:]}.\n\n| header | |\n|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif ROW.findall(PAGE.read_text()) != ROW.findall(page()):
        sys.exit("docs/code.md is not current: python tools/headers.py")
