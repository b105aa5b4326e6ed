"""The device is compiled once, before the first test that needs it. Cases that several tests look at run once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import cases
import ordered_device
import pytest
import run_ranks

Told = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    ordered_device.compiled()


@pytest.fixture(scope="session")
def delayed(_device: None) -> Iterator[dict[str, Future[Told]]]:
    """What two ranks told of some cases on streams that run late, by seed and longest delay of an operator in us."""
    with ThreadPoolExecutor() as pool:
        yield {
            how: pool.submit(run_ranks.run_cases, cases.ONE_OF_EACH, f"ordered:async:{how}", timeout_s=300)
            for how in ("1:100", "2:200", "3:400")
        }


@pytest.fixture(scope="session", autouse=True)
def _begun(_device: None, request: pytest.FixtureRequest) -> None:
    """Delayed streams wait more than they compute: if a test asks for them, they begin with the session."""
    if any("delayed" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("delayed")


@pytest.fixture(scope="session")
def checked(_device: None) -> Told:
    """What two ranks told of every case, in check mode and on the CPU."""
    return run_ranks.run_cases(list(cases.CASES), "ordered:check", timeout_s=300)


@pytest.fixture(scope="session")
def among_four(_device: None) -> Told:
    """The same of four ranks, and some cases."""
    names = [*cases.ONE_OF_EACH, "hybrid_accumulate", "memory HYBRID_SHARD", "memory of the group, hybrid"]
    return run_ranks.run_cases(names, "ordered:check", world=4, timeout_s=300)
