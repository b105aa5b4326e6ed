"""Another build of the extension in the place of the installed one: the file that OSDP_TEST_EXTENSION names."""

from __future__ import annotations

import importlib.util
import os
import sys

NAME = "osdp._C"


def load() -> None:
    """Before osdp is imported, and after torch."""
    import torch  # noqa: F401

    if not (path := os.environ.get("OSDP_TEST_EXTENSION")):
        return
    assert NAME not in sys.modules, f"{NAME} has been imported already"
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
