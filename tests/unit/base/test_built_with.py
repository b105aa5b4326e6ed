"""An extension that was built with another torch says so when osdp is imported, and what mends it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

import osdp
from osdp import _search
from osdp.base import built_with

MINOR = ".".join(torch.__version__.split(".")[:2])


def imported_with(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    """`import osdp` where this is the torch that is found."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('planning alone imports no torch')")
    (folder / "torch" / "version.py").write_text(f"__version__ = {version!r}\n")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    code = "try:\n    import osdp\nexcept ImportError as e:\n    print(type(e).__name__, e)\nelse:\n    print('imported')"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )


def test_another_torch_is_told_at_import(tmp_path: Path):
    found = imported_with(tmp_path, "2.99.1+cpu").stdout
    assert found.startswith("BuildError") and f"torch {torch.__version__}" in found and "2.99.1+cpu" in found
    assert "pip install --no-build-isolation --no-deps --force-reinstall ." in found
    assert f"pip install 'torch=={MINOR}.*'" in found


def test_another_patch_release_is_the_same_interface(tmp_path: Path):
    assert imported_with(tmp_path, f"{MINOR}.99").stdout == "imported\n"


def test_no_torch_is_told_at_import(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(built_with, "installed_torch", lambda: None)
    with pytest.raises(osdp.BuildError, match="no torch is installed"):
        built_with.check_torch()


def test_what_was_built_with_is_known_and_required():
    assert _search.built_with() == built_with.installed_torch() == torch.__version__
    wanted = requires("osdp")
    assert f"torch=={MINOR}.*" in wanted and any(r.startswith("numpy") for r in wanted)
