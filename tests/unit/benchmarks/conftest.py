"""Benchmarks, imported as they import one another."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmarks_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`support` is the benchmarks': the tests among ranks have a package of that name, too."""
    others = {n: sys.modules.pop(n) for n in list(sys.modules) if n.partition(".")[0] == "support"}
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "support"]:
        del sys.modules[name]
    sys.modules.update(others)
