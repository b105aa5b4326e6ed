"""Hooks of the documentation site (mkdocs.yml). Links out of docs/, to tests and sources, become their text; links that name
a page's file show its title; examples in docstrings become code (docs_examples.py)."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")
_PAGE = re.compile(r"\[([a-z0-9-]+\.md)\]\((?:docs/)?\1(#[^)]*)?\)")


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    return with_titles(_OUTSIDE.sub(r"\1", markdown), titles(config["nav"]))


def titles(nav: list[Any]) -> dict[str, str]:
    """The title of each page, by its file."""
    found: dict[str, str] = {}
    for entry in nav:
        for title, page in entry.items():
            found |= titles(page) if isinstance(page, list) else {page: title}
    return found


def with_titles(markdown: str, title_of: dict[str, str]) -> str:
    """`markdown` with titles in place of file names as the text of links to pages."""
    return _PAGE.sub(lambda m: f"[{title_of.get(m[1], m[1])}]({m[1]}{m[2] or ''})", markdown)


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


def field_comment(lines: list[str], first: int, end: int) -> str:
    """What a comment says of the field in `lines[first:end]`: behind it, or in the lines above it."""
    behind = lines[end - 1].partition("  # ")[2].strip()
    above: list[str] = []
    while first > 0 and lines[first - 1].strip().startswith("# "):
        first -= 1
        above.insert(0, lines[first].strip().removeprefix("# "))
    told = " ".join([*above, behind]).strip()
    return told[:1].upper() + told[1:] + ("" if told.endswith(".") or not told else ".")
