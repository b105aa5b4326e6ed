"""What a wheel requires: the torch that its extension is compiled against, of that minor version, and the rest as listed.

A provider for pyproject.toml's [[tool.dynamic-metadata]]. torch keeps its C++ interface within a minor version, and not
beyond: an extension built against 2.14 does not load with 2.13. A source distribution is made without torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
from collections.abc import Mapping
from typing import Any

MINORS = [(2, minor) for minor in range(11, 16)]
SUPPORTED = f"torch>={'.'.join(map(str, MINORS[0]))},<2.{MINORS[-1][1] + 1}"


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    try:
        import torch
    except ImportError:  # a source distribution: the wheel that is built of it knows
        return {"dependencies": [SUPPORTED, *settings["others"]]}
    return {"dependencies": [of_minor(str(torch.__version__)), *settings["others"]]}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}


def of_minor(version: str) -> str:
    """ "torch==2.13.*" for "2.13.0+cpu"."""
    major, minor = version.split(".")[:2]
    return f"torch=={major}.{minor}.*"


def to_build_with() -> str:
    """The torch for an isolated build: of the minor version that is installed where the wheel will be, if that is known.

    An isolated build does not see the environment's packages, but it runs the environment's Python (pip), or is told the
    environment (VIRTUAL_ENV, CONDA_PREFIX).
    """
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    for prefix in filter(None, map(os.environ.get, ("VIRTUAL_ENV", "CONDA_PREFIX"))):
        folders.append(sysconfig.get_path("purelib", vars={"base": prefix, "platbase": prefix}))
    found = next(iter(importlib.metadata.distributions(name="torch", path=folders)), None)
    if found is None:
        told, taken = "no torch is installed: osdp is built with the newest that it supports", SUPPORTED
    elif tuple(map(int, found.version.split(".")[:2])) in MINORS:
        told, taken = f"torch {found.version} is installed: osdp is built for it", of_minor(found.version)
    else:
        told, taken = f"torch {found.version} is installed, which osdp does not support", SUPPORTED
    print(f"osdp: {told} ({taken})", flush=True)
    return taken
