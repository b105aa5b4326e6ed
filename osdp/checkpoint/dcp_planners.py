"""Planner and writer for torch.distributed.checkpoint (DCP): boxes of full tensors, written once.

Built on DCP's public planner interface, so the files are ordinary DCP files, which
`torch.distributed.checkpoint.format_utils` reads. OSDP reads them itself (osdp/checkpoint/reading.py), by its own table.
"""

from __future__ import annotations

import dataclasses
import io
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from osdp.checkpoint.boxes import Box, Chunk, Row, tile
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import TensorEntry
from osdp.errors import FormatError


@dataclasses.dataclass(frozen=True)
class Tensors:
    """The tensors that one rank writes or fills: for every key the full tensor's entry, and this rank's boxes
    of it."""

    entries: Mapping[str, TensorEntry]
    chunks: Mapping[str, Sequence[Chunk]]

    def find(self, index: MetadataIndex) -> Tensor:
        for chunk in self.chunks[index.fqn]:
            if index.offset is not None and chunk.offsets == tuple(index.offset):
                return chunk.tensor
        raise KeyError(f"{index.fqn} at {index.offset}")


class ChunkSavePlanner(SavePlanner):
    """Every box is written by one rank: its holder or, if it is replicated, the holder with the least to
    write."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.tell: Callable[[int], None] | None = None  # called with the number of bytes handed out
        self._handed_out = 0

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        """Does nothing: the constructor received the tensors; the state dict is empty."""

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
                        f"ranks disagree on the boxes of {item.index.fqn} at {item.index.offset}"
                    )
                holders.setdefault(item.index, []).append(rank)
        load = [0] * len(all_plans)
        written: list[list[WriteItem]] = [[] for _ in all_plans]
        metadata: dict[str, TensorStorageMetadata] = {}
        # Boxes with one holder first: the replicated ones then balance the load.
        for index, ranks in sorted(holders.items(), key=lambda entry: len(entry[1]) > 1):
            data = items[index].tensor_data
            assert data is not None
            owner = min(ranks, key=lambda rank: load[rank])
            load[owner] += bytes_of(items[index])
            saved = metadata.setdefault(index.fqn, TensorStorageMetadata(data.properties, data.size, []))
            hint = dataclasses.replace(index, index=len(saved.chunks))
            written[owner].append(dataclasses.replace(items[index], index=hint))
            saved.chunks.append(data.chunk)
        for key, entry in self.tensors.entries.items():
            held = metadata[key].chunks if key in metadata else []
            if not tile(entry.shape, ((box.offsets, box.sizes) for box in held)):
                raise FormatError(
                    f"the ranks' boxes of {key} do not cover {list(entry.shape)} exactly once", key
                )
        plans = [dataclasses.replace(p, items=w) for p, w in zip(all_plans, written, strict=True)]
        # DCP types this field by its union of tensors and bytes, which a dict of tensors is.
        return plans, Metadata(dict(metadata))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        self._handed_out += bytes_of(write_item)
        if self.tell is not None:
            self.tell(self._handed_out)
        return self._found(write_item.index)

    def _found(self, index: MetadataIndex) -> Tensor:
        return self.tensors.find(index)

    def copied(self, items: Sequence[WriteItem]) -> CopiedPlanner:
        """A planner that writes the present values of these items, from copies."""
        return CopiedPlanner(
            {item.index: self._found(item.index).detach().to("cpu", copy=True) for item in items}
        )


class CopiedPlanner(ChunkSavePlanner):
    """Hands out each copy once, and does not keep it afterwards."""

    def __init__(self, copies: dict[MetadataIndex, Tensor]) -> None:
        super().__init__(Tensors({}, {}))
        self._copies = copies

    def _found(self, index: MetadataIndex) -> Tensor:
        return self._copies.pop(index)


class BoxWriter(FileSystemWriter):
    """DCP's writer, which also reports the positions of this rank's boxes in the files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.places: dict[str, list[Box]] = {}  # whose checksums are 0 until `boxes`

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        sizes = {item.index: tuple(item.tensor_data.chunk.sizes) for item in plan.items if item.tensor_data}
        written = super().write_data(plan, planner)
        for result in written.value():
            info, index = result.storage_data, result.index
            box = Box(
                tuple(index.offset or ()), sizes[index], info.relative_path, info.offset, info.length, 0
            )
            self.places.setdefault(index.fqn, []).append(box)
        return written

    def boxes(self, folder: Folder) -> dict[str, tuple[Box, ...]]:
        """This rank's boxes, with checksums of their bytes in the files."""
        return {
            key: tuple(
                box._replace(crc32=zlib.crc32(folder.read(box.file, box.begin, box.length))) for box in places
            )
            for key, places in self.places.items()
        }


def bytes_of(item: WriteItem) -> int:
    """Bytes of the tensor that the item writes."""
    data = item.tensor_data
    assert data is not None
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def write_metadata(writer: BoxWriter, metadata: Metadata, boxes: Mapping[str, Sequence[Row]]) -> None:
    """Write DCP's own metadata for the boxes of all ranks."""
    results = [
        WriteResult(MetadataIndex(key, torch.Size(offsets)), length, _StorageInfo(file, begin, length))
        for key, rows in boxes.items()
        for offsets, _, file, begin, length, _ in rows
    ]
    writer.finish(metadata, [results])
