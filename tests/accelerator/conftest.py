"""The device is compiled once, before the first test that needs it; every case runs on it once."""

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
