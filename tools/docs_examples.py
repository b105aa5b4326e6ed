"""A griffe extension for the site (mkdocs.yml): examples in docstrings are shown as code, since as Markdown a prompt is
three nested quotations; and fields are documented by the comment beside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docs_site import as_code, field_comment


class Examples(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_code(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        fields = attr.parent is not None and attr.parent.is_class and attr.annotation is not None
        if fields and attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            lines = attr.filepath.read_text().splitlines()
            if told := field_comment(lines, attr.lineno - 1, attr.endlineno or attr.lineno):
                attr.docstring = griffe.Docstring(told, parent=attr)
