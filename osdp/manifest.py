"""Manifest: what a checkpoint holds, as JSON beside the tensors. Written last; a directory without it is no checkpoint.

    {"format": "osdp-checkpoint", "version": 1,
     "parameters": {"blocks.0.fc.weight": {"shape": [1536, 384], "dtype": "float32"}, ...},
     "buffers":    {"norm.running_mean":  {"shape": [384], "dtype": "float32"}, ...},
     "optimizer":  {"kind": "torch.optim.adamw.AdamW",
                    "groups": [{"parameters": ["blocks.0.fc.weight", ...], "options": {"lr": 0.001, "betas": [0.9, 0.99]}}],
                    "tensors": {"blocks.0.fc.weight": {"exp_avg": {"shape": [1536, 384], "dtype": "float32"},
                                                       "step": {"shape": [], "dtype": "float32"}}, ...},
                    "values": {"blocks.0.fc.weight": {}}},
     "files": {"__0_0.distcp": {"bytes": 1234, "crc32": 99}}}

Shapes are those of the full tensors. `optimizer` is null where none was saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from osdp.errors import FormatError

FILE_NAME = "manifest.json"
FORMAT = "osdp-checkpoint"
VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True)
class TensorEntry:
    """One full tensor: `shape`, and `dtype` as in str(torch.float32) without "torch."."""

    shape: tuple[int, ...]
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
    options: Mapping[str, Any]


@dataclass(frozen=True)
class OptimizerEntry:
    kind: str  # the optimizer's class, with its module
    groups: tuple[Group, ...]
    tensors: Mapping[str, Mapping[str, TensorEntry]]  # parameter -> state's name -> tensor
    values: Mapping[str, Mapping[str, Any]]  # parameter -> state's name -> number, string or None


@dataclass(frozen=True)
class FileEntry:
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    parameters: Mapping[str, TensorEntry]
    buffers: Mapping[str, TensorEntry]
    optimizer: OptimizerEntry | None
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1) + "\n"

    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor under its key in the checkpoint: "model.NAME", "optimizer.NAME.STATE"."""
        result = {model_key(name): entry for name, entry in {**self.parameters, **self.buffers}.items()}
        if self.optimizer is not None:
            for name, state in self.optimizer.tensors.items():
                result |= {state_key(name, key): entry for key, entry in state.items()}
        return result


def model_key(name: str) -> str:
    return f"model.{name}"


def state_key(parameter: str, state: str) -> str:
    return f"optimizer.{parameter}.{state}"


def read_manifest(directory: Path) -> Manifest:
    """Reads and validates `directory`'s manifest.

    Raises FormatError, naming the field, where the directory is no complete checkpoint, or the file is truncated, of a
    newer version, or has missing, unknown or wrongly typed fields.
    """
    path = directory / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FormatError(
            f"{directory} is not a complete checkpoint: it has no {FILE_NAME}, which is written last. Load another one."
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text: {error}") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON (truncated?): {error}") from None
    return _Reader(path).manifest(document)


class _Reader:
    """Walks the JSON document; every failure names the path of its field."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, where: str, problem: str) -> NoReturn:
        raise FormatError(f"{self.path}: {where or 'the document'} {problem}", field=where)

    def fields(self, value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(where, f"should be an object, not {type(value).__name__}")
        prefix = f"{where}." if where else ""
        for name in names:
            if name not in value:
                self.fail(prefix + name, "is missing")
        for name in value:
            if name not in names:
                self.fail(prefix + name, "is unknown to this version of OSDP")
        return value

    def mapping(self, value: Any, where: str, read: Callable[[Any, str], T]) -> dict[str, T]:
        if not isinstance(value, dict):
            self.fail(where, f"should be an object, not {type(value).__name__}")
        return {name: read(item, f"{where}.{name}") for name, item in value.items()}

    def natural(self, value: Any, where: str) -> int:
        if type(value) is not int or not 0 <= value < 2**63:
            self.fail(where, f"should be an integer from 0 to 2^63 - 1, not {value!r:.60}")
        return value

    def items(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.fail(where, f"should be a list, not {type(value).__name__}")
        return value

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            self.fail(where, f"should be a string, not {type(value).__name__}")
        return value

    def tensor(self, value: Any, where: str) -> TensorEntry:
        entry = self.fields(value, where, ("shape", "dtype"))
        shape = self.items(entry["shape"], f"{where}.shape")
        dtype = self.text(entry["dtype"], f"{where}.dtype")
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            self.fail(f"{where}.dtype", f"is not a dtype of this torch: {dtype!r:.60}")
        return TensorEntry(tuple(self.natural(n, f"{where}.shape") for n in shape), dtype)

    def group(self, value: Any, where: str) -> Group:
        entry = self.fields(value, where, ("parameters", "options"))
        names = self.items(entry["parameters"], f"{where}.parameters")
        options = self.mapping(entry["options"], f"{where}.options", lambda item, _: item)
        return Group(tuple(self.text(n, f"{where}.parameters") for n in names), options)

    def optimizer(self, value: Any) -> OptimizerEntry:
        entry = self.fields(value, "optimizer", ("kind", "groups", "tensors", "values"))
        groups = self.items(entry["groups"], "optimizer.groups")
        return OptimizerEntry(
            kind=self.text(entry["kind"], "optimizer.kind"),
            groups=tuple(self.group(g, f"optimizer.groups.{i}") for i, g in enumerate(groups)),
            tensors=self.mapping(
                entry["tensors"], "optimizer.tensors", lambda v, where: self.mapping(v, where, self.tensor)
            ),
            values=self.mapping(
                entry["values"],
                "optimizer.values",
                lambda v, where: self.mapping(v, where, lambda item, _: item),
            ),
        )

    def file(self, value: Any, where: str) -> FileEntry:
        entry = self.fields(value, where, ("bytes", "crc32"))
        return FileEntry(
            self.natural(entry["bytes"], f"{where}.bytes"), self.natural(entry["crc32"], f"{where}.crc32")
        )

    def manifest(self, document: Any) -> Manifest:
        if isinstance(document, dict):  # the version first: a newer one may have other fields
            if document.get("format") != FORMAT:
                self.fail("format", f"should be {FORMAT!r}, not {document.get('format')!r:.60}")
            version = self.natural(document.get("version"), "version")
            if version != VERSION:
                self.fail("version", f"is {version}; this version of OSDP reads {VERSION}")
        names = ("format", "version", "parameters", "buffers", "optimizer", "files")
        entry = self.fields(document, "", names)
        return Manifest(
            parameters=self.mapping(entry["parameters"], "parameters", self.tensor),
            buffers=self.mapping(entry["buffers"], "buffers", self.tensor),
            optimizer=None if entry["optimizer"] is None else self.optimizer(entry["optimizer"]),
            files=self.mapping(entry["files"], "files", self.file),
        )
