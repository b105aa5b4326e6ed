"""Pictures by matplotlib, which a notebook draws once."""

from __future__ import annotations

import importlib.util
from typing import Any

from osdp.errors import InvalidProblemError


def pyplot(what: str) -> Any:
    """matplotlib.pyplot, for `what`, in words. Raises InvalidProblemError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidProblemError(f"{what} needs matplotlib: pip install 'osdp[plot]'")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    return plt


def drawn_once(figure: Any) -> Any:
    """`figure`, a pyplot figure to return. A notebook shows the value of a cell's last line, and after it all figures that
    are open in pyplot: there it is closed, which leaves its picture as it is. Elsewhere `plt.show()` must still find it."""
    plt = pyplot("a figure")
    if "inline" in plt.get_backend():
        plt.close(figure)
    return figure
