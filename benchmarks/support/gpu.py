"""On which GPU figures were measured."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch


def head() -> dict[str, str]:
    """What a file of results says first; a CPU shows only that a benchmark runs."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"gpu": name, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def line(found: Mapping[str, Any]) -> str:
    return f"{found['gpu']}, torch {found['torch']}, {found['date']}"
