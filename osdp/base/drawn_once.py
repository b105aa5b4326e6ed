"""Pictures that a notebook draws once."""

from __future__ import annotations

from typing import Any


def drawn_once(figure: Any) -> Any:
    """`figure`, a pyplot figure to return. A notebook shows the value of a cell's last line, and after it all figures that
    are open in pyplot: there it is closed, which leaves its picture as it is. Elsewhere `plt.show()` must still find it."""
    import matplotlib.pyplot as plt  # type: ignore[import-not-found, unused-ignore]

    if "inline" in plt.get_backend():
        plt.close(figure)
    return figure
