"""What a wheel requires: the torch that its extension is compiled against, of that minor version, and the rest as listed.

A provider for pyproject.toml's [[tool.dynamic-metadata]]. torch keeps its C++ interface within a minor version, and not
beyond: an extension built against 2.14 does not load with 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    import torch

    major, minor = torch.__version__.split(".")[:2]
    return {"dependencies": [f"torch=={major}.{minor}.*", *settings["others"]]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
