"""Tests in this folder are extras: `make test-extras` runs them, and nobody else imports what they need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
from harness import Pool


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.option.markexpr == "extras" else True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        told = "tests/extras runs with `-m extras`; `make test-extras` also installs what it needs"
        session.config.get_terminal_writer().line(f"\n{told}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.extras)


@pytest.fixture(scope="session")
def _pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture
def ranks(_pool: Pool) -> Callable[..., list[Any]]:
    """As in tests/distributed, on two ranks."""
    return _pool.run
