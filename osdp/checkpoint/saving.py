"""Saving: the steps of saving one checkpoint, from the ranks' common write plan to the final directory.

    saving = Saving.begin(together, model, optimizer, directory)   # collective: who writes which boxes
    saving.copy(limit_bytes)         # optional: from here on training may go on
    written = saving.write()         # this rank's boxes; no exchange with other ranks
    saving.complete(everybody's)     # rank 0: manifest, then the name

Note [A copy of bounded size]
So that training can continue while a checkpoint is written, a rank copies its share of parameters, buffers
and optimizer state to host memory; replicated tensors are divided among the ranks. If the share is larger
than the limit, the excess is written immediately, before `copy` returns; so copies never take more than the
limit and one box. Each box's copy is freed when it is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torch import nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.optim import Optimizer

from osdp.base.byte_sizes import format_bytes
from osdp.base.progress import Progress
from osdp.checkpoint.boxes import Row
from osdp.checkpoint.dcp_planners import BoxWriter, ChunkSavePlanner, bytes_of, write_metadata
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import FileEntry, dumps
from osdp.checkpoint.model_state import State, is_stage, look_at_tree
from osdp.checkpoint.places import Partial, check_target, partial_path, recover, resolved, write_new
from osdp.errors import OSDPError
from osdp.ranks.rank_group import Together

T = TypeVar("T")

METADATA_NAME = ".metadata"  # DCP's own metadata, for its tools


@dataclass(frozen=True)
class Written:
    """The record of one rank's writes: boxes by tensor, and its files."""

    boxes: Mapping[str, Sequence[Row]]
    files: Mapping[str, FileEntry]


def typed_do(together: Together, step: str, work: Callable[[], T]) -> T:
    """`Together.do`, with system errors converted to ours."""

    def typed() -> T:
        try:
            return work()
        except OSError as error:
            raise OSDPError(f"{step} failed on rank {together.rank}: {error}") from error

    return together.do(step, typed)


class Saving:
    """This rank's work for one checkpoint. Created by `begin`; call `abandon` if something fails."""

    def __init__(self, target: Path, token: str, partial: Partial | None, rank: int, world_size: int) -> None:
        self.target = target
        self.path = partial_path(target, token)
        self.rank, self.world_size = rank, world_size
        self.share_bytes = 0  # of tensors that this rank writes
        self.copied_bytes = 0  # of these, copied to host memory
        self._partial = partial  # rank 0's
        self._extra: dict[str, bytes] = {}

    @staticmethod
    def begin(
        together: Together,
        model: nn.Module,
        optimizer: Optimizer | None,
        directory: str | os.PathLike[str],
        extra: Mapping[str, bytes] | None = None,
    ) -> Saving:
        """Collective. `extra`: files that rank 0 adds, by name. Raises as `osdp.save` does, on all ranks."""
        look_at_tree(model)
        step = f"saving {os.fspath(directory)!r:.200}"
        token = together.first(lambda: os.urandom(4).hex())

        def opened() -> Saving:
            target = resolved(directory)
            partial = None
            if together.rank == 0:
                check_target(target)
                recover(target)
                partial = Partial(target, token)
            return Saving(target, token, partial, together.rank, together.world_size)

        saving = typed_do(together, step, opened)
        try:
            saving._plan(together, step, model, optimizer)
            saving._extra = dict(extra or {})
        except BaseException:
            saving.abandon()
            raise
        return saving

    def _plan(self, together: Together, step: str, model: nn.Module, optimizer: Optimizer | None) -> None:
        state = typed_do(together, step, lambda: State.of_save(model, optimizer))
        self._manifest = state.agree(together, stages=is_stage(model))
        tensors = typed_do(together, step, lambda: state.tensors(self._manifest))
        self._planner = ChunkSavePlanner(tensors)
        local = together.all(self._planner.create_local_plan())
        # All ranks make the same plan from it, or all raise.
        plans, metadata = self._planner.create_global_plan(local)
        self._metadata: Metadata = metadata
        self._items = plans[self.rank].items
        self.share_bytes = sum(bytes_of(item) for item in self._items)
        self._writer = BoxWriter(self.path)
        self._writer.set_up_storage_writer(self.rank == 0)
        self._writer.prepare_local_plan(SavePlan([]))  # makes the directory

    def copy(self, limit_bytes: int | None) -> None:
        """Note [A copy of bounded size]. None: no limit."""
        left = self.share_bytes if limit_bytes is None else limit_bytes
        later = []
        for item in self._items:
            if bytes_of(item) <= left:
                left -= bytes_of(item)
                later.append(item)
        kept = {item.index for item in later}
        self._write([item for item in self._items if item.index not in kept], part=0)
        self._planner = self._planner.copied(later)
        self._items = later
        self.copied_bytes = sum(bytes_of(item) for item in later)

    def write(self) -> Written:
        """Write this rank's remaining boxes. Does not communicate."""
        with Progress(f"osdp.save {self.target.name}") as progress:
            total = sum(bytes_of(item) for item in self._items)
            self._planner.tell = lambda done: progress(
                f"{format_bytes(done)} of {format_bytes(total)} written"
            )
            self._write(self._items, part=1 if self.copied_bytes else 0)
            folder = Folder(self.path)
            boxes = self._writer.boxes(folder)
            names = sorted({row[2] for rows in boxes.values() for row in rows})
            return Written(boxes, {name: FileEntry(*folder.checksum(name)) for name in names})

    def _write(self, items: Sequence[object], part: int) -> None:
        """Write `items`. `part`: 0 or 1, which have separate files."""
        if not items:
            return
        plans = [SavePlan([]) for _ in range(2 * self.world_size)]
        mine = part * self.world_size + self.rank
        plans[mine] = SavePlan(list(items))  # type: ignore[arg-type]
        plan = self._writer.prepare_global_plan(plans)[mine]
        try:
            self._writer.write_data(plan, self._planner).wait()
        except (OSError, OSDPError):
            raise
        except Exception as error:  # of torch.save, such as when the disk is full
            raise OSDPError(
                f"writing {self.path} failed on rank {self.rank}: {type(error).__name__}: {error}"
            ) from error

    def complete(self, everything: Sequence[Written]) -> None:
        """On rank 0, with the records of all ranks in order: check them and rename the checkpoint to its
        final name."""
        if self._partial is None:
            return
        folder = Folder(self.path)
        boxes: dict[str, tuple[Row, ...]] = {}
        files: dict[str, FileEntry] = {}
        for rank, written in enumerate(everything):
            for key, rows in written.boxes.items():
                boxes[key] = (*boxes.get(key, ()), *rows)
            for name, entry in written.files.items():
                if not folder.has(name) or folder.size(name) != entry.bytes:
                    raise OSDPError(
                        f"rank {rank} wrote {folder / name}, but rank 0 does not see it: save to a "
                        "directory on a file system that all ranks share"
                    )
                files[name] = entry
        write_metadata(self._writer, self._metadata, boxes)
        for name, text in self._extra.items():
            write_new(self.path / name, text)
        for name in (METADATA_NAME, *self._extra):
            files[name] = FileEntry(*folder.checksum(name))
        folder.close()
        self._partial.complete(dumps(replace(self._manifest, boxes=boxes, files=files)))

    def abandon(self) -> None:
        if self._partial is not None:
            self._partial.abandon()
