"""Checkpoints of version 1: their manifest, and the table of boxes, which was torch's pickle `.metadata`.

Both are converted to one document of version 1, which file_versions.py upgrades. Nothing else in OSDP
unpickles a table.

Note [Reading a pickle without trust]
A pickle is a program: it can name any function, and set attributes on any object that it names. This reader
first checks all of its instructions, and refuses those that a table does not need, and lengths for which the
unpickler would reserve more memory than the file's size. Names are then resolved not to torch's classes but
to placeholder values created for this table, into which the unpickler only stores.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import re
from typing import Any, NoReturn

from osdp.checkpoint.folder import Folder
from osdp.errors import FormatError

METADATA_NAME = ".metadata"
MAX_BYTES = 512 * 2**20

_FORMAT = re.compile(rb'\s*{\s*"format"\s*:')
# Instructions that a table does not need, and that reserve memory of a given size, refer outside of the file,
# or create objects in other ways.
_REFUSED = {
    "BYTEARRAY8",
    "NEXT_BUFFER",
    "READONLY_BUFFER",
    "PERSID",
    "BINPERSID",
    "EXT1",
    "EXT2",
    "EXT4",
    "INST",
    "OBJ",
}
_TYPES = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "builtins": {"getattr"},  # for enumeration members, as some releases of Python 3.11 pickle them
}


def is_manifest(text: bytes) -> bool:
    """Whether a manifest has version 1, which has "format" instead of "osdp"."""
    return _FORMAT.match(text) is not None


def document(folder: Folder, text: bytes) -> bytes:
    """A checkpoint of version 1 as one document: its manifest, with the table as the field "table"."""
    try:
        manifest = json.loads(text, object_pairs_hook=_unique, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:  # ValueError: also text that is not UTF-8
        raise FormatError(f"not valid JSON (truncated?): {error}") from None
    if manifest.pop("format") != "osdp-checkpoint":
        raise FormatError("the format must be 'osdp-checkpoint'", "format")
    table = [[key, *row] for key, row in _rows(folder)]
    try:
        return json.dumps({"osdp": "checkpoint", **manifest, "table": table}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{folder / METADATA_NAME} is damaged: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a field appears twice")
    return dict(pairs)


def _number(text: str) -> Any:
    """Version 1 wrote NaN and Infinity, which JSON lacks."""
    number = float(text)
    return number if math.isfinite(number) else {"float": str(number)}


class _Value:
    """An object of the table of any class: its arguments, and its fields as set by the pickle."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.args = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name != "Size" and name.isidentifier():
            return f"torch.{name}"  # a dtype, or the layout: the name is enough
        base = {"torch.Size": tuple, "collections.OrderedDict": dict}.get(f"{module}.{name}", _Value)
        known = (
            base is not _Value
            or name in _TYPES.get(module, ())
            or (module.partition(".")[0] == "pathlib" and name.endswith("Path"))  # the path of the files
        )
        if known:
            return type(name, (base,), {})  # of this table alone, as are attributes set on it
        raise FormatError(f"{METADATA_NAME} refers to {module}.{name}, which no table of tensors needs")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise FormatError(f"{METADATA_NAME} refers to an object outside of the file")


def _check_instructions(raw: bytes) -> None:
    for number, (instruction, argument, _) in enumerate(pickletools.genops(raw)):
        if instruction.name in _REFUSED:
            raise FormatError(
                f"{METADATA_NAME} has the pickle instruction {instruction.name}, which no table of "
                "tensors needs"
            )
        if instruction.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= int(argument or 0) <= number:
            raise FormatError(f"{METADATA_NAME} reserves memory that no table of tensors needs")


def _rows(folder: Folder) -> list[tuple[str, list[Any]]]:
    """(key, [offsets, sizes, file, begin, length]) of every box in torch's table."""
    if not folder.has(METADATA_NAME):
        raise FormatError(f"{folder} is not a complete checkpoint: {METADATA_NAME} is missing")
    raw = folder.read_all(METADATA_NAME, MAX_BYTES)
    try:
        _check_instructions(raw)
        metadata = _Unpickler(io.BytesIO(raw)).load()
        sizes = {
            (key, tuple(chunk.offsets)): list(chunk.sizes)
            for key, tensor in metadata.state_dict_metadata.items()
            for chunk in tensor.chunks
        }
        return [
            (index.fqn, [list(index.offset), sizes.pop((index.fqn, tuple(index.offset))), *_place(info)])
            for index, info in metadata.storage_data.items()
        ]
    except FormatError:
        raise
    except Exception as error:  # damaged pickles raise all kinds of errors
        raise FormatError(
            f"{folder / METADATA_NAME} is damaged or not a table of tensors: {type(error).__name__}: {error!s:.200}"
        ) from None


def _place(info: Any) -> tuple[Any, Any, Any]:
    return info.relative_path, info.offset, info.length
