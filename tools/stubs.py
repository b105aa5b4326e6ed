"""Writes osdp/_search.pyi and osdp/_C.pyi from the built extension; with --check, says whether they are current.

Run by `make format` and `make lint`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch  # noqa: F401  (osdp._C needs its libraries)

MODULES = ("osdp._search", "osdp._C")
ROOT = Path(__file__).resolve().parent.parent


def generate(folder: Path) -> dict[Path, str]:
    """The stubs, formatted as the rest of the code is: path in the repository -> text."""
    command = [
        sys.executable,
        "-c",
        "import torch, sys; from pybind11_stubgen import main; main(sys.argv[1:])",
    ]
    options = ["--ignore-all-errors", "--output-dir", str(folder)]
    for module in MODULES:
        subprocess.run([*command, *options, module], check=True, stderr=subprocess.DEVNULL)
    found = {ROOT / path.relative_to(folder): path for path in sorted(folder.rglob("*.pyi"))}
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--quiet"]
    files = [str(path) for path in found.values()]
    subprocess.run([*ruff, "check", "--fix", "--exit-zero", *config, *files], check=True)
    subprocess.run([*ruff, "format", *config, *files], check=True)
    return {target: path.read_text() for target, path in found.items()}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        stubs = generate(Path(folder))
    if not stubs:
        print("pybind11-stubgen wrote no stub")
        return 1
    if "--check" in sys.argv[1:]:
        stale = [
            str(p.relative_to(ROOT)) for p, text in stubs.items() if not p.exists() or p.read_text() != text
        ]
        if stale:
            print(f"not current: {', '.join(stale)}; run `make format` and commit them")
        return bool(stale)
    for path, text in stubs.items():
        path.parent.mkdir(exist_ok=True)  # a module with submodules becomes a folder of stubs
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
