"""Reads a checkpoint's tensors in two passes: everything is checked, then this rank's boxes are filled.

The first pass reads every byte that this rank will need, and a share of all files for their checksums, and changes
nothing. The second reads again and copies. Both hold one box at a time (8 MiB; boxes.py), never a full tensor.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from osdp.checkpoint.boxes import Box
from osdp.checkpoint.dcp_planners import Tensors
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import FileEntry, Manifest
from osdp.errors import FormatError


@dataclass(frozen=True)
class Reading:
    """One box to read, and the destinations of its parts: (slices of the box, this rank's memory)."""

    key: str
    box: Box
    dtype: torch.dtype
    parts: tuple[tuple[tuple[slice, ...], Tensor], ...]


def _silent(_: int) -> None: ...


def readings(tensors: Tensors, manifest: Manifest) -> list[Reading]:
    """The readings that fill `tensors`, in the order of the files. The manifest's boxes tile every tensor
    (manifest.py)."""
    found = []
    for key, held in tensors.chunks.items():
        dtype = tensors.entries[key].torch_dtype
        for row in manifest.boxes.get(key, ()) if held else ():
            box = Box(*row)
            parts = tuple(
                part for chunk in held if (part := _overlap(box, chunk.offsets, chunk.tensor)) is not None
            )
            if parts:
                found.append(Reading(key, box, dtype, parts))
    return sorted(found, key=lambda reading: (reading.box.file, reading.box.begin))


def _overlap(box: Box, offsets: tuple[int, ...], tensor: Tensor) -> tuple[tuple[slice, ...], Tensor] | None:
    source, target = [], tensor
    for d, (begin, size, at, held) in enumerate(
        zip(box.offsets, box.sizes, offsets, tensor.shape, strict=True)
    ):
        first, last = max(begin, at), min(begin + size, at + held)
        if first >= last:
            return None
        source.append(slice(first - begin, last - begin))
        target = target.narrow(d, first - at, last - first)
    return tuple(source), target


def check_files(folder: Folder, manifest: Manifest, rank: int, world_size: int) -> None:
    """Check that this rank's share of the files exists and is undamaged."""
    for name in sorted(manifest.files)[rank::world_size]:
        found, wanted = FileEntry(*folder.checksum(name)), manifest.files[name]
        if found != wanted:
            raise FormatError(
                f"{folder}: {name} is damaged: {found.bytes} bytes with checksum {found.crc32:08x}, "
                f"expected {wanted.bytes} bytes with checksum {wanted.crc32:08x}",
                field=f"files.{name}",
            )


def check(folder: Folder, wanted: list[Reading], tell: Callable[[int], None] = _silent) -> list[int]:
    """Check that every box can be read and agrees with the manifest; returns the checksums. Changes nothing.

    `tell`: called with the number of bytes read.
    """
    return [crc for crc, _ in _boxes(folder, wanted, tell)]


def fill(
    folder: Folder, wanted: list[Reading], checksums: list[int], tell: Callable[[int], None] = _silent
) -> None:
    """Copy the boxes that `check` has checked into this rank's memory."""
    for reading, checksum, (crc, tensor) in zip(wanted, checksums, _boxes(folder, wanted, tell), strict=True):
        if crc != checksum:
            raise FormatError(f"{folder / reading.box.file} has changed", reading.key)
        for source, target in reading.parts:
            target.copy_(tensor[source])


def _boxes(
    folder: Folder, wanted: list[Reading], tell: Callable[[int], None]
) -> Iterator[tuple[int, Tensor]]:
    done = 0
    for reading in wanted:
        tell(done)
        box = reading.box
        done += box.length
        raw = folder.read(box.file, box.begin, box.length)
        crc = zlib.crc32(raw)
        if crc != box.crc32:
            raise FormatError(
                f"{folder}: {box.file} is damaged in {reading.key}: bytes {box.begin} to "
                f"{box.begin + box.length} have checksum {crc:08x}, expected {box.crc32:08x}",
                field=reading.key,
            )
        yield crc, _tensor(raw, reading, folder)


def _tensor(raw: bytes, reading: Reading, folder: Folder) -> Tensor:
    """The tensor that torch.save wrote as `raw`. FormatError if it is something else."""
    where = f"{folder / reading.box.file}, {reading.key} at {list(reading.box.offsets)}"
    try:
        records = zipfile.ZipFile(io.BytesIO(raw)).infolist()
        if any(r.compress_type != zipfile.ZIP_STORED or r.file_size > len(raw) for r in records):
            raise FormatError(f"{where}: it is compressed, which OSDP never writes", field=reading.key)
        tensor = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except FormatError:
        raise
    except Exception as error:  # torch.load's error for damaged bytes
        raise FormatError(
            f"{where}: not a tensor: {type(error).__name__}: {error!s:.200}", reading.key
        ) from None
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise FormatError(f"{where}: not a tensor", field=reading.key)
    if tuple(tensor.shape) != tuple(reading.box.sizes) or tensor.dtype != reading.dtype:
        raise FormatError(
            f"{where}: {tensor.dtype} {list(tensor.shape)}, expected {reading.dtype} "
            f"{list(reading.box.sizes)}",
            field=reading.key,
        )
    return tensor.detach()
