"""The device is compiled once, before the first test that needs it. Cases that several tests look at run once."""

from __future__ import annotations

from typing import Any

import cases
import ordered_device
import pytest
import run_ranks


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    ordered_device.compiled()


@pytest.fixture(scope="session")
def checked(_device: None) -> dict[str, list[dict[str, Any]]]:
    """What two ranks told of every case, in check mode and on the CPU."""
    return run_ranks.run_cases(list(cases.CASES), "ordered:check", timeout_s=300)


@pytest.fixture(scope="session")
def among_four(_device: None) -> dict[str, list[dict[str, Any]]]:
    """The same of four ranks, and some cases."""
    names = [*cases.ONE_OF_EACH, "hybrid_accumulate", "memory HYBRID_SHARD", "memory of the group, hybrid"]
    return run_ranks.run_cases(names, "ordered:check", world=4, timeout_s=300)
