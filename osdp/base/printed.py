"""Values that print as tables: in a terminal, by rich, as the last line of a notebook's cell, and as text.

A dataclass of many operators has a repr of tens of thousands of characters. Values that users look at are `Printed`,
declared with `repr=False`, and define `__rich__`.
"""

from __future__ import annotations

import io
import shutil
import sys
from html import escape

from rich.console import Console, RenderableType

from osdp.base.later_methods import function_of

_NOTEBOOK_COLUMNS = 110
# What tables and bars are drawn with, for output whose encoding has none of it (PYTHONIOENCODING=ascii, LANG=C).
_AS_ASCII = str.maketrans("█▓▒░•▁▂▃▄▅▆▇", "#=+.*__--==+")


class Printed:
    """A value with `__rich__` or `__rich_console__`: its text, repr and HTML are what rich shows of it."""

    def __str__(self) -> str:
        return plain(self)

    def __repr__(self) -> str:
        return str(self).rstrip("\n")

    def _repr_html_(self) -> str:
        return html(self)


class PrintedLater(Printed):
    """Printed by the function that is registered for its class (osdp/base/later_methods.py), of osdp.show."""

    def __rich__(self) -> RenderableType:
        shown: RenderableType = function_of(f"{type(self).__name__}.__rich__")(self)
        return shown


class PrintedText(str):
    """Text of several lines that a prompt or a notebook's cell shows as it is, instead of in quotes with "\\n"."""

    def __repr__(self) -> str:
        return self.rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


def plain(renderable: RenderableType | Printed, width: int | None = None) -> str:
    """Anything for a rich console as text without colours, of at most `width` columns; None: the terminal's, 100 if there
    is none."""
    columns = width or min(140, shutil.get_terminal_size((100, 24)).columns)
    console = Console(
        width=columns,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        record=False,
        legacy_windows=False,
        no_color=True,
    )
    with console.capture() as capture:
        console.print(renderable)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
    return text if encodes(text) else text.translate(_AS_ASCII)


def encodes(text: str) -> bool:
    """Whether standard output can write `text`."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def html(renderable: RenderableType | Printed) -> str:
    """Anything for a rich console as HTML: preformatted text in the notebook's own colours."""
    console = Console(
        width=_NOTEBOOK_COLUMNS, file=io.StringIO(), force_jupyter=False, legacy_windows=False, record=True
    )
    console.print(renderable)
    return console.export_html(
        inline_styles=True, code_format="<pre style='line-height:1.3;color:inherit'>{code}</pre>"
    )
