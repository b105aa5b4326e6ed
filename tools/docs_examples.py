"""A griffe extension for the site (mkdocs.yml): examples in docstrings are shown as code. As Markdown a prompt is three
nested quotations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docs_site import as_code


class Examples(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_code(obj.docstring.value)
