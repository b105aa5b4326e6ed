"""Hooks of the documentation site (mkdocs.yml). Links out of docs/, to tests and sources, become their text; examples in
docstrings become code (docs_examples.py)."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return _OUTSIDE.sub(r"\1", markdown)


def as_code(docstring: str) -> str:
    """`docstring` with each example, from a line that begins with ">>>" to the next empty line, in a fence."""
    lines: list[str] = []
    inside = False
    for line in docstring.splitlines():
        if line.startswith(">>>") and not inside:
            lines += ["", "```pycon"]
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
