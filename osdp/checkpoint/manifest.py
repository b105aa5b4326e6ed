"""Manifest: the contents of a checkpoint, as a JSON file. Written last; a directory without it is not a
checkpoint.

    {"osdp": "checkpoint", "version": 1,
     "parameters": {"blocks.0.fc.weight": {"shape": [1536, 384], "dtype": "float32"}, ...},
     "buffers":    {"norm.running_mean":  {"shape": [384], "dtype": "float32"}, ...},
     "optimizer":  {"kind": "torch.optim.adamw.AdamW",
                    "groups": [{"parameters": ["blocks.0.fc.weight", ...], "options": {"lr": 0.001, "betas": [0.9, 0.99]}}],
                    "tensors": {"blocks.0.fc.weight": {"exp_avg": {"shape": [1536, 384], "dtype": "float32"},
                                                       "step": {"shape": [], "dtype": "float32"}}, ...},
                    "values": {"blocks.0.fc.weight": {}}},
     "boxes": {"model.blocks.0.fc.weight": [[[0, 0], [768, 384], "__0_0.distcp", 0, 1180880, 2213540], ...], ...},
     "files": {"__0_0.distcp": {"bytes": 1234, "crc32": 99}, ".metadata": ...},
     "checksum": "crc32:0123abcd"}

Shapes are those of the full tensors. `optimizer` is null if none was saved. A box consists of offsets, sizes,
file, first byte, number of bytes, and their CRC-32 (boxes.py). The checksum is that of the whole text
before it. An option or value that JSON cannot represent is an object: {"float": "inf"}, {"integer":
"9223372036854775808"}.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from osdp.base import json_files
from osdp.base.strict_json import Limits
from osdp.checkpoint.boxes import Box, Count, Row, apart, tile
from osdp.checkpoint.folder import Folder, is_file_name
from osdp.errors import FormatError

FILE_NAME = "manifest.json"
KIND = "checkpoint"
MAX_BYTES = 512 * 2**20
LIMITS = Limits(MAX_BYTES, 64 * 2**20)  # about 11 values for each box, so about six million boxes

_END = re.compile(rb',\n "checksum": "crc32:([0-9a-f]{8})"\n}\n\Z')


@dataclass(frozen=True)
class TensorEntry:
    """One full tensor: `shape`, and `dtype` as in str(torch.float32) without "torch."."""

    shape: tuple[Count, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)  # checked when the manifest was read
        return dtype


@dataclass(frozen=True)
class Group:
    """One of the optimizer's parameter groups: names, and plain options such as the learning rate."""

    parameters: tuple[str, ...]
    options: Mapping[str, object]


@dataclass(frozen=True)
class OptimizerEntry:
    """The optimizer: its qualified class name, its groups, and its states of each parameter."""

    kind: str
    groups: tuple[Group, ...]
    tensors: Mapping[str, Mapping[str, TensorEntry]]  # parameter -> state's name -> tensor
    values: Mapping[str, Mapping[str, object]]  # parameter -> state's name -> number, text, list or None


@dataclass(frozen=True)
class FileEntry:
    """Size and checksum of one file."""

    bytes: Count
    crc32: Count


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint."""

    parameters: Mapping[str, TensorEntry]
    buffers: Mapping[str, TensorEntry]
    optimizer: OptimizerEntry | None
    boxes: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)  # by key; see `tensors`
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor under its key in the checkpoint: "model.NAME", "optimizer.NAME.STATE"."""
        return dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, TensorEntry]]:
        for name, entry in (*self.parameters.items(), *self.buffers.items()):
            yield model_key(name), entry
        for name, state in self.optimizer.tensors.items() if self.optimizer is not None else ():
            for key, entry in state.items():
                yield state_key(name, key), entry

    def all_boxes(self) -> Iterator[tuple[str, Box]]:
        for key, rows in self.boxes.items():
            for row in rows:
                yield key, Box(*row)


def model_key(name: str) -> str:
    return f"model.{name}"


def state_key(parameter: str, state: str) -> str:
    return f"optimizer.{parameter}.{state}"


def dumps(manifest: Manifest) -> bytes:
    """The text of `manifest`, checked as in reading: FormatError if no reader would accept it."""
    body = json_files.dumps(KIND, _with_values(manifest, _plain)).removesuffix("\n}\n").encode()
    text = body + b',\n "checksum": "crc32:%08x"\n}\n' % zlib.crc32(body)
    loads(text)
    return text


def loads(text: bytes) -> Manifest:
    """Parse the text of `dumps`. FormatError, naming the field, if it is damaged or inconsistent."""
    end = _END.search(text)
    body = text if end is None else text[: end.start()] + b"\n}\n"
    damaged = end is None or zlib.crc32(text[: end.start()]) != int(end[1], 16)
    if damaged:
        version = json_files.version(KIND, body, LIMITS)  # the checksum of newer versions is unknown
        raise FormatError(f"damaged: its checksum is wrong or missing (version {version})", "checksum")
    return _with_values(json_files.loads(KIND, Manifest, body, _problems, LIMITS), _value)


def read_manifest(folder: Folder) -> Manifest:
    """Read and validate the manifest in `folder`.

    Raises FormatError, naming the field, if the directory is not a complete checkpoint, or the file is
    damaged, of a newer version, or has missing, unknown or wrongly typed fields.
    """
    if not folder.has(FILE_NAME):
        raise FormatError(
            f"{folder} is not a complete checkpoint: it has no {FILE_NAME}, which is written last. Load another one."
        )
    text = folder.read_all(FILE_NAME, MAX_BYTES)
    try:
        return loads(text)
    except FormatError as error:
        raise FormatError(f"{folder / FILE_NAME}: {error}", error.field, error.line, error.column) from None


def _problems(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Violations that types do not express. The first one is raised."""
    for name in manifest.files:
        if not is_file_name(name) or name == FILE_NAME:
            yield "files", f"{name!r:.80} is not the name of a file next to the manifest"
    entries = manifest.tensors()
    if len(entries) < sum(1 for _ in manifest._tensors()):
        yield "boxes", "two tensors have the same key: their dotted names are ambiguous"
    for key, entry in entries.items():
        if not isinstance(getattr(torch, entry.dtype, None), torch.dtype):
            yield f"boxes.{key}", f"{entry.dtype!r:.60} is not a dtype of the installed torch"
        elif not tile(entry.shape, ((row[0], row[1]) for row in manifest.boxes.get(key, ()))):
            yield f"boxes.{key}", f"the boxes of {key} do not cover {list(entry.shape)} exactly once"
    for key, box in manifest.all_boxes():
        file = manifest.files.get(box.file)
        if key not in entries:
            yield f"boxes.{key}", f"there is no tensor {key:.80}"
        elif file is None or box.begin + box.length > file.bytes:
            yield (
                f"boxes.{key}",
                f"{key} is in {box.file!r:.80}, bytes {box.begin} to {box.begin + box.length}, which "
                "the manifest does not list",
            )
        elif box.length < math.prod(box.sizes) * entries[key].torch_dtype.itemsize:
            yield (
                f"boxes.{key}",
                f"{box.length} bytes cannot hold a {list(box.sizes)} of {entries[key].dtype}",
            )
    if (shared := apart(box for _, box in manifest.all_boxes())) is not None:
        yield "boxes", f"two boxes overlap in {shared.file!r:.80} at byte {shared.begin}"


def _with_values(manifest: Manifest, change: Any) -> Manifest:
    """The manifest with `change` applied to every option and value of the optimizer."""
    optimizer = manifest.optimizer
    if optimizer is None:
        return manifest
    groups = tuple(replace(g, options={k: change(v) for k, v in g.options.items()}) for g in optimizer.groups)
    values = {n: {k: change(v) for k, v in state.items()} for n, state in optimizer.values.items()}
    return replace(manifest, optimizer=replace(optimizer, groups=groups, values=values))


def _plain(value: Any) -> Any:
    """`value` in a form that strict JSON can represent."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return {"integer": str(int(value))}
    return value


def _value(plain: Any) -> Any:
    """The inverse of `_plain`."""
    if isinstance(plain, list):
        return [_value(v) for v in plain]
    if isinstance(plain, dict):
        match plain:
            case {"float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
                return float(text)
            case {"integer": str(text), **rest} if not rest and re.fullmatch(r"-?[0-9]{1,4000}", text):
                return int(text)
        raise FormatError("an option or value is an object that does not encode a number", "optimizer")
    return plain
