"""export: a checkpoint's weights as safetensors, in the layout of Hugging Face's hub.

model.safetensors                                                one file, or
model-00001-of-00003.safetensors ... model.safetensors.index.json    several, and which holds what
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from osdp.base import byte_sizes, json_files
from osdp.base.progress import Progress
from osdp.checkpoint.boxes import Chunk
from osdp.checkpoint.dcp_planners import Tensors
from osdp.checkpoint.manifest import Manifest, TensorEntry, model_key
from osdp.checkpoint.reading import check, check_files, fill, readings
from osdp.checkpoint.save_load import opened
from osdp.errors import InvalidProblemError, OSDPError

if TYPE_CHECKING:
    from osdp.checkpoint.folder import Folder

_INDEX = "model.safetensors.index.json"


def export(
    directory: str | os.PathLike[str], target: str | os.PathLike[str], *, max_shard: int | str = "5GB"
) -> list[Path]:
    """Write parameters and buffers of the checkpoint `directory` into the directory `target`; returns the
    files in order.

    It runs in one process, without a model, and holds one file's tensors at a time, `max_shard` bytes (more
    if a single tensor is larger). Names are the model's; a tied tensor is written once, under its first name,
    as Hugging Face expects. `target` may hold other files, such as config.json. Each file is written under a
    temporary name and then renamed, the index last.

    Raises FormatError for a damaged checkpoint, InvalidProblemError if `target` contains weights already,
    OSDPError without the package safetensors or if writing fails.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise OSDPError("exporting needs safetensors: pip install 'osdp[safetensors]'") from error
    limit = byte_sizes.parse_bytes(max_shard)
    if limit < 1:
        raise InvalidProblemError(f"max_shard must be at least 1 byte, got {max_shard!r}")
    place = Path(target)
    if place.exists() and not place.is_dir():
        raise InvalidProblemError(f"{place} is a file; give a directory")
    for old in (*place.glob("model*.safetensors"), *place.glob(_INDEX)):
        raise InvalidProblemError(
            f"{place} already holds weights: {old.name}. Give another directory, or remove them"
        )
    folder, manifest, _ = opened(directory)
    with contextlib.closing(folder), Progress("osdp.export") as progress:
        check_files(folder, manifest, 0, 1)
        shards = list(_shards({**manifest.parameters, **manifest.buffers}, limit))
        names = ["model.safetensors"]
        if len(shards) > 1:
            names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        place.mkdir(parents=True, exist_ok=True)
        for i, (name, entries) in enumerate(zip(names, shards, strict=True)):
            progress(f"file {i + 1} of {len(shards)}")
            tensors = _read(folder, manifest, entries)
            partial = place / f".{name}.partial"
            try:
                save_file(tensors, partial, metadata={"format": "pt"})
                _sync(partial)
                os.replace(partial, place / name)
            except Exception as error:
                raise OSDPError(f"{place / name} cannot be written: {error}") from error
            finally:
                partial.unlink(missing_ok=True)
    files = [place / name for name in names]
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(_bytes(e) for shard in shards for e in shard.values())},
            "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
        }
        json_files.save_text(place / _INDEX, json.dumps(index, indent=2) + "\n")
        files.append(place / _INDEX)
    return files


def _shards(entries: Mapping[str, TensorEntry], limit: int) -> Iterator[dict[str, TensorEntry]]:
    shard: dict[str, TensorEntry] = {}
    size = 0
    for name, entry in entries.items():
        if shard and size + _bytes(entry) > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = entry
        size += _bytes(entry)
    yield shard


def _read(folder: Folder, manifest: Manifest, entries: Mapping[str, TensorEntry]) -> dict[str, torch.Tensor]:
    """Full tensors, checked as `osdp.load` checks them."""
    tensors = {name: torch.empty(entry.shape, dtype=entry.torch_dtype) for name, entry in entries.items()}
    wanted = readings(
        Tensors(
            {model_key(name): entry for name, entry in entries.items()},
            {model_key(n): [Chunk((0,) * t.dim(), t, replicated=False)] for n, t in tensors.items()},
        ),
        manifest,
    )
    fill(folder, wanted, check(folder, wanted))
    return tensors


def _bytes(entry: TensorEntry) -> int:
    return math.prod(entry.shape) * entry.torch_dtype.itemsize


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
