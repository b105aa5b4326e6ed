"""On how many ranks a test runs."""

from __future__ import annotations

from typing import Any

import pytest


def worlds(*shown: int, more: tuple[int, ...] = ()) -> list[Any]:
    """For `parametrize("world", ...)`: CI runs the test on so many ranks as show all that can go wrong (uneven rows take
    three, lines of several ranks four), `make test-extras` on `more`, too."""
    return [*shown, *(pytest.param(world, marks=pytest.mark.extras) for world in more)]
