"""upgrade: rewrites files and checkpoints of older versions in place in the newest version."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from osdp.base import file_versions, json_files
from osdp.checkpoint import manifest, version_1
from osdp.checkpoint.file_boxes import Box
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.reading import Reading, check, check_files
from osdp.description.model_description import ModelDescription
from osdp.errors import FormatError, InvalidProblemError
from osdp.hardware.hardware import Hardware
from osdp.plan.plan import Plan


def upgrade(path: str | os.PathLike[str]) -> Iterator[str]:
    """Upgrades the file or checkpoint `path`, or those in the directory `path` and below; yields a line for each.

    Each file is replaced atomically after its new text has been read back. Files of the newest version are
    not touched, nor are files in a directory that OSDP did not write. Raises FormatError if a file is damaged
    or of a newer OSDP.
    """
    path = Path(path)
    if path.is_dir():
        for place, folders, names in os.walk(path):
            folders.sort()
            if manifest.FILE_NAME in names and _is_manifest(Path(place) / manifest.FILE_NAME):
                folders.clear()
                yield _upgrade_checkpoint(Path(place))
                continue
            for name in sorted(names):
                file = Path(place) / name
                if name.endswith(".json") and file.is_file() and _kind(file) in _READERS:
                    yield _upgrade_file(file)
    elif path.is_file():
        yield _upgrade_file(path)
    else:
        raise InvalidProblemError(f"{path} is neither a file nor a directory")


_READERS: dict[str | None, Callable[[Path], object]] = {
    "plan": Plan.load,
    "hardware": Hardware.load,
    "description": ModelDescription.load,
}


def _is_manifest(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        beginning = file.read(200)
    return version_1.is_manifest(beginning) or b'"osdp": "checkpoint"' in beginning


def _kind(path: Path) -> str | None:
    """The kind that the file states; None if it is not a file of OSDP."""
    try:
        document = json_files.parse(json_files.load_bytes(path))
    except FormatError:
        return None
    kind = document.get("osdp") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) and kind in file_versions.STEPS else None


def _upgrade_file(path: Path) -> str:
    kind = _kind(path)
    if kind is None or kind not in _READERS:
        raise FormatError(
            f"{path}: not a file that OSDP writes: a plan, hardware, a description or a checkpoint's "
            "directory",
            "osdp",
        )
    old = json_files.parse(json_files.load_bytes(path))
    text = json_files.dumps(kind, _READERS[kind](path))
    if old["version"] == file_versions.newest(kind):
        return f"{path}: {kind}, version {old['version']}: up to date"
    json_files.save_text(path, text)
    changes = [
        line for line in file_versions.what_changed(old, json_files.parse(text)) if line != "changed version"
    ]
    return f"{path}: {kind}, version {old['version']} to {file_versions.newest(kind)}: {', '.join(changes) or 'the version'}"


def _upgrade_checkpoint(path: Path) -> str:
    """Only the manifest is rewritten: it gets the table of boxes, and checksums of all files and boxes."""
    folder = Folder(path)
    held = manifest.read_manifest(folder)
    newest = file_versions.newest(manifest.KIND)
    if not version_1.is_manifest(folder.read_all(manifest.FILE_NAME, manifest.MAX_BYTES)):
        return f"{path}: checkpoint, version {newest}: up to date"
    check_files(folder, held, 0, 1)
    entries = held.tensors()
    readings = [Reading(key, box, entries[key].torch_dtype, ()) for key, box in held.all_boxes()]
    boxes: dict[str, list[Box]] = {}
    for reading, crc32 in zip(readings, check(folder, readings), strict=True):
        boxes.setdefault(reading.key, []).append(reading.box._replace(crc32=crc32))
    table = manifest.FileEntry(*folder.checksum(version_1.METADATA_NAME))
    complete = replace(
        held,
        boxes={key: tuple(rows) for key, rows in boxes.items()},
        files={**held.files, version_1.METADATA_NAME: table},
    )
    json_files.save_text(path / manifest.FILE_NAME, manifest.dumps(complete).decode())
    return (
        f"{path}: checkpoint, version 1 to {newest}: added {len(readings)} boxes with their "
        "checksums, and the checksums of .metadata and of the manifest"
    )
