"""The device is compiled once, before the first test that needs it. Cases that several tests look at run once: one process
runs all of these tests, see tests/conftest.py."""

from __future__ import annotations

import os
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
def _pool(_device: None) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(scope="session")
def delayed(_pool: ThreadPoolExecutor) -> Future[Told]:
    """What two ranks told of some cases on streams that run late, each operator by up to 400 us."""
    return _pool.submit(run_ranks.run_cases, cases.ONE_OF_EACH, "ordered:async:3:400", timeout_s=900)


@pytest.fixture(scope="session")
def delayed_reductions(_pool: ThreadPoolExecutor) -> Future[Told]:
    """The same of reductions on a lane of their own."""
    device = "ordered:async:2:200"
    return _pool.submit(run_ranks.run_cases, cases.REDUCTIONS, device, timeout_s=900, SEPARATE_REDUCTIONS="1")


@pytest.fixture(scope="session", autouse=True)
def _begun(_device: None, request: pytest.FixtureRequest) -> None:
    """Ranks wait for each other, and delayed streams wait more than they compute: what is long begins with the session."""
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    for name in ("_checked", "_among_four", "delayed", "delayed_reductions"):
        if name in asked:
            request.getfixturevalue(name)


@pytest.fixture(scope="session")
def _checked(_pool: ThreadPoolExecutor) -> Future[Told]:
    leaves_out = "OSDP_TEST_EXTENSION" in os.environ  # test_sensitivity.py: whatever comes to a call
    names = [name for name in cases.CASES if leaves_out or name not in cases.SHOWN_BY_OTHERS]
    return _pool.submit(run_ranks.run_cases, names, "ordered:check", timeout_s=900)


@pytest.fixture(scope="session")
def checked(_checked: Future[Told]) -> Told:
    """What two ranks told of every case but those that others show, in check mode and on the CPU."""
    return _checked.result()


@pytest.fixture(scope="session")
def _among_four(_pool: ThreadPoolExecutor) -> Future[Told]:
    names = [*cases.AMONG_FOUR, "memory HYBRID_SHARD", "memory of the group, hybrid"]
    return _pool.submit(run_ranks.run_cases, names, "ordered:check", world=4, timeout_s=900)


@pytest.fixture(scope="session")
def among_four(_among_four: Future[Told]) -> Told:
    """The same of four ranks, and the cases that need them."""
    return _among_four.result()
