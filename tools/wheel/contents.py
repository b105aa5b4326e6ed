"""Fails unless a wheel has what a user needs, and nothing else: `python tools/wheel/contents.py WHEEL`, in the clone."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

_FILES = ("*.py", "*.pyi", "*.json", "py.typed")


def problems(wheel: Path, clone: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        told = message_from_bytes(archive.read(metadata))
    expected = {str(f.relative_to(clone)) for what in _FILES for f in (clone / "osdp").rglob(what)}
    yield from (f"{name} is missing" for name in sorted(expected - names))
    for module in ("osdp/_C", "osdp/_search"):
        if sum(name.startswith(f"{module}.") and name.endswith(".so") for name in names) != 1:
            yield f"there is not one {module}.*.so"
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        yield "the license is missing"
    for name in sorted(names - expected):
        known = ".dist-info/" in name or (name.startswith("osdp/_") and name.endswith(".so"))
        if not known:
            yield f"{name} does not belong there"
    if not any(line.startswith("torch==") for line in told.get_all("Requires-Dist", [])):
        yield "it does not require the minor version of torch that it was built with"
    if "](docs/" in str(told.get_payload()):
        yield "its description has links that lead nowhere on a package index"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]), Path(__file__).parents[2]))
    sys.exit("\n".join(f"{sys.argv[1]}: {why}" for why in found) or None)
