"""The README as a package index shows it: links and pictures of this repository, which lead nowhere there, are text.

A provider for pyproject.toml's [[tool.dynamic-metadata]].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PICTURE = re.compile(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    text = Path("README.md").read_text(encoding="utf-8")
    return {"readme": {"content-type": "text/markdown", "text": without_links(text)}}


def without_links(text: str) -> str:
    return _LINK.sub(r"\1", _PICTURE.sub("", text))
