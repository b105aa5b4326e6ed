"""Planners and reader for torch.distributed.checkpoint: boxes of full tensors, written once and read into any layout.

Built on DCP's public planner interface, so the files are ordinary DCP files, which
`torch.distributed.checkpoint.format_utils` reads. Only tensors are stored: nothing that a reader would have to unpickle.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from osdp.errors import FormatError
from osdp.manifest import TensorEntry
from osdp.pieces import Chunk, elements

METADATA_NAME = ".metadata"


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What one rank has to write or fill: for every key the full tensor's entry, and this rank's boxes of it."""

    entries: Mapping[str, TensorEntry]
    chunks: Mapping[str, Sequence[Chunk]]

    def find(self, index: MetadataIndex) -> Tensor:
        for chunk in self.chunks[index.fqn]:
            if index.offset is not None and chunk.offsets == tuple(index.offset):
                return chunk.tensor
        raise KeyError(f"{index.fqn} at {index.offset}")


class ChunkSavePlanner(SavePlanner):
    """Every box is written by one rank: its holder, or for a replicated one the holder with the least to write."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Nothing: the tensors came with the constructor; the state dict is empty."""

    def create_local_plan(self) -> SavePlan:
        return SavePlan([self._item(key, c) for key, held in self.tensors.chunks.items() for c in held])

    def _item(self, key: str, chunk: Chunk) -> WriteItem:
        offsets = torch.Size(chunk.offsets)
        return WriteItem(
            index=MetadataIndex(key, offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk=ChunkStorageMetadata(offsets=offsets, sizes=chunk.tensor.shape),
                properties=TensorProperties(dtype=chunk.tensor.dtype),
                size=torch.Size(self.tensors.entries[key].shape),
            ),
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        holders: dict[MetadataIndex, list[int]] = {}
        items: dict[MetadataIndex, WriteItem] = {}
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                first = items.setdefault(item.index, item)
                if first.tensor_data != item.tensor_data:
                    raise FormatError(
                        f"ranks hold different boxes of {item.index.fqn} at {item.index.offset}"
                    )
                holders.setdefault(item.index, []).append(rank)
        load = [0] * len(all_plans)
        written: list[list[WriteItem]] = [[] for _ in all_plans]
        metadata: dict[str, TensorStorageMetadata] = {}
        # The boxes with one holder first: the replicated ones then level the load.
        for index, ranks in sorted(holders.items(), key=lambda entry: len(entry[1]) > 1):
            data = items[index].tensor_data
            assert data is not None
            owner = min(ranks, key=lambda rank: load[rank])
            load[owner] += elements(data.chunk.sizes) * data.properties.dtype.itemsize
            saved = metadata.setdefault(index.fqn, TensorStorageMetadata(data.properties, data.size, []))
            hint = dataclasses.replace(index, index=len(saved.chunks))
            written[owner].append(dataclasses.replace(items[index], index=hint))
            saved.chunks.append(data.chunk)
        check_cover(metadata, self.tensors.entries)
        plans = [dataclasses.replace(p, items=w) for p, w in zip(all_plans, written, strict=True)]
        # DCP types this field by its union of tensors and bytes, which a dict of tensors is.
        return plans, Metadata(dict(metadata))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        return self.tensors.find(write_item.index)


class ChunkLoadPlanner(LoadPlanner):
    """Reads into this rank's boxes whatever boxes were saved. Tensors that are not asked for are not read."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        return LoadPlan(read_items(self.tensors, self.metadata))

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        raise FormatError(f"{read_item.storage_index.fqn} is not a tensor", field=read_item.storage_index.fqn)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        target = self.tensors.find(read_item.dest_index)
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dim, offset, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing: `resolve_tensor` gave views of the destination."""


def read_items(tensors: Tensors, metadata: Metadata) -> list[ReadItem]:
    """What to read to fill every box of `tensors`. FormatError naming the tensor where the checkpoint lacks a part."""
    items: list[ReadItem] = []
    for key, held in tensors.chunks.items():
        if not held:
            continue
        saved = metadata.state_dict_metadata.get(key)
        if not isinstance(saved, TensorStorageMetadata):
            raise FormatError(f"the checkpoint's {METADATA_NAME} lacks {key}", field=key)
        boxes = [ChunkStorageMetadata(torch.Size(c.offsets), c.tensor.shape) for c in held]
        found = create_read_items_for_chunk_list(key, saved, boxes)
        if sum(elements(i.lengths) for i in found) != sum(c.tensor.numel() for c in held):
            raise FormatError(f"the checkpoint holds only a part of {key}: it is incomplete", field=key)
        items += found
    return items


def check_cover(metadata: Mapping[str, Any], entries: Mapping[str, TensorEntry]) -> None:
    """FormatError unless the boxes in `metadata` fill exactly the tensors of `entries`, in shape and dtype."""
    for key, entry in entries.items():
        saved = metadata.get(key)
        if saved is None and elements(entry.shape) == 0:
            continue
        if not isinstance(saved, TensorStorageMetadata):
            raise FormatError(f"no rank holds any part of {key}", field=key)
        if tuple(saved.size) != entry.shape or saved.properties.dtype != entry.torch_dtype:
            raise FormatError(
                f"{key} was to be {entry.dtype} {list(entry.shape)}, its boxes are of "
                f"{saved.properties.dtype} {list(saved.size)}",
                field=key,
            )
        for box in saved.chunks:
            if any(
                o < 0 or o + n > size for o, n, size in zip(box.offsets, box.sizes, saved.size, strict=True)
            ):
                raise FormatError(f"{key} has a box outside the tensor: {box}", field=key)
        covered = sum(elements(box.sizes) for box in saved.chunks)
        if covered != elements(entry.shape):
            raise FormatError(
                f"the boxes of {key} hold {covered} of {elements(entry.shape)} elements", field=key
            )


# Note [Reading .metadata]
# DCP keeps its table of boxes as a pickle. A pickle can name any function, so a checkpoint from elsewhere could run code.
# This reader resolves the few value types the table consists of and refuses every other name. The tensors themselves
# DCP reads with torch.load(weights_only=True).
_METADATA_TYPES = {
    "torch": {"Size", "strided", *(n for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype))},
    "torch.serialization": {"_get_layout"},
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
    "collections": {"OrderedDict"},
}


def _enum_member(cls: object, name: object) -> enum.Enum:
    """What getattr does for an enum's member, which is how some releases of Python 3.11 pickle it; nothing else."""
    if (
        isinstance(cls, type)
        and issubclass(cls, enum.Enum)
        and isinstance(name, str)
        and name in cls.__members__
    ):
        return cls[name]
    raise FormatError(f"{METADATA_NAME} takes an attribute that is not an enumeration's member")


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module.partition(".")[0] == "pathlib" and name.endswith("Path"):
            return (
                os.path.join
            )  # where it was written; the class and its module differ between versions of Python
        if name not in _METADATA_TYPES.get(module, ()):
            raise FormatError(
                f"{METADATA_NAME} refers to {module}.{name}, which a table of tensors has no use for"
            )
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> NoReturn:
        raise FormatError(f"{METADATA_NAME} refers to something outside itself")


def read_metadata(directory: Path) -> Metadata:
    """DCP's table of boxes. FormatError where it is missing, truncated, or not such a table."""
    path = directory / METADATA_NAME
    try:
        metadata = _MetadataUnpickler(io.BytesIO(path.read_bytes())).load()
    except FormatError:
        raise
    except FileNotFoundError:
        raise FormatError(f"{directory} is not a complete checkpoint: {METADATA_NAME} is missing") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FormatError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.state_dict_metadata, dict):
        raise FormatError(f"{path} is not a table of tensors")
    return metadata


class ChunkReader(FileSystemReader):
    """DCP's reader, with the table that was already read and checked."""

    def __init__(self, directory: Path, metadata: Metadata) -> None:
        super().__init__(directory)
        self._checked = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._checked
