"""The device is compiled once, before the first test that needs it."""

from __future__ import annotations

import ordered_device
import pytest


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    ordered_device.compiled()
