"""The `ranks` fixture: `ranks(case, world=2)` runs an importable case on that many reused processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness import Pool


@pytest.fixture(scope="session")
def _pool() -> Iterator[Pool]:
    pool = Pool(4)
    yield pool
    pool.close()


@pytest.fixture
def ranks(_pool: Pool) -> Callable[..., list[Any]]:
    return _pool.run
