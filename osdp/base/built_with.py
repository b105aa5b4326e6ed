"""Checks that torch is the version for which the extension was compiled: others fail later with a missing
symbol."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

from osdp.errors import BuildError

_MEND = (
    "Build osdp against the torch that is installed, in osdp's source directory:\n"
    "    pip install --no-build-isolation --no-deps --force-reinstall .\n"
    "(`make build` does that for its own environment)"
)


def check_torch() -> None:
    """Raises BuildError, an ImportError, if it is not. Does not import torch, since planning alone does not
    need it."""
    try:
        from osdp import _search
    except ImportError as error:
        raise BuildError(f"osdp's extension cannot be loaded: {error}. {_MEND}") from error
    version, here = _search.built_with(), installed_torch()
    if here is None:
        raise BuildError(
            f"osdp needs torch {_minor(version)}, but no torch is installed: pip install "
            f"'torch=={_minor(version)}.*'"
        )
    if _minor(here) != _minor(version):
        raise BuildError(
            f"osdp was built with torch {version}, but torch {here} is installed, and its C++ "
            f"interface differs. {_MEND}, or install the torch that it was built with: pip install "
            f"'torch=={_minor(version)}.*'"
        )


def installed_torch() -> str | None:
    """The version of the installed torch; None if there is none."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "version"):
        return str(torch.__version__)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return str(runpy.run_path(str(Path(spec.origin).with_name("version.py")))["__version__"])


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
