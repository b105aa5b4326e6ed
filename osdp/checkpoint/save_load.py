"""save and load: checkpoints that fit any world size and any plan, and never make a full tensor.

    osdp.save(model, optimizer, "run/step-1000")     # collective: every rank calls it
    osdp.load(model, optimizer, "run/step-1000")     # other ranks, another plan, or one process without any

A checkpoint is a directory of files of torch.distributed.checkpoint (DCP) and `manifest.json` (see manifest.py).

Note [When a checkpoint is valid]
Ranks write into a directory beside the target; when all are done, rank 0 adds the manifest with all files' sizes and
checksums, and renames the directory (osdp/checkpoint/places.py): a run that dies while saving leaves the previous
checkpoint. Loading first reads and checks everything, on all ranks, and only when none objects does it change anything
(osdp/checkpoint/reading.py).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from osdp.checkpoint.dcp_planners import BoxWriter, ChunkSavePlanner
from osdp.checkpoint.file_boxes import Row
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import FILE_NAME, FileEntry, Manifest, dumps, read_manifest
from osdp.checkpoint.model_state import State, look_at_tree
from osdp.checkpoint.places import Partial, check_target, found, partial_path, recover, resolved
from osdp.checkpoint.reading import Reading, check, check_files, fill, readings
from osdp.errors import FormatError, OSDPError
from osdp.ranks.rank_group import Together
from osdp.sharding.sharded_model import sharded_of

T = TypeVar("T")
Boxes = Mapping[str, tuple[Row, ...]]

_METADATA_NAME = ".metadata"  # DCP's own table, for its tools
_WHOLE = 1 << 62  # bytes: pieces are filled as they are, not in boxes


def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    directory: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Writes parameters, buffers (rank 0's) and the optimizer's state to `directory`. Collective.

    `model`: sharded or not; `optimizer`: made over its parameters, or None. `directory`: on a file system that all
    ranks share. An older checkpoint there is replaced, with all that lies in it, once the new one is complete; where it is
    a symbolic link (`latest`), what it leads to is. `process_group`: by default the one over which the model is sharded,
    else all ranks; without any, one process saves. Each rank writes what it holds; what all ranks hold is written once,
    spread over them.

    Raises ShardingError where `directory` holds something else than a checkpoint or a state cannot be described,
    OSDPError where writing failed on some rank. Both on all ranks, and an older checkpoint is still there then.
    """
    look_at_tree(model)
    together = Together(process_group or _group_of(model), "osdp.save")
    step = f"saving {os.fspath(directory)!r:.200}"
    token = together.first(_token)
    target = _do(together, step, lambda: resolved(directory))
    partial = _do(together, step, lambda: _begin(target, token) if together.rank == 0 else None)
    try:
        state = _do(together, step, lambda: State.of_save(model, optimizer))
        manifest = state.agree(together)
        tensors = _do(together, step, lambda: state.tensors(manifest))
        writer = BoxWriter(partial_path(target, token))
        try:
            with warnings.catch_warnings():  # DCP warns that one process saves alone; here that is meant
                warnings.simplefilter("ignore")
                together.outside(
                    lambda: dcp_save(
                        {},
                        storage_writer=writer,
                        planner=ChunkSavePlanner(tensors),
                        process_group=together.group,
                        no_dist=together.alone,
                    )
                )
        except CheckpointException as error:
            raise _failure(step, error) from error
        folder = _do(together, step, lambda: Folder(writer.path))
        written = _do(together, step, lambda: _written(folder, writer.boxes(folder, tensors), together.rank))
        everything = together.all(written)
        _do(together, step, lambda: _complete(partial, folder, manifest, everything))
    except BaseException:
        if partial is not None:
            partial.abandon()
        raise


def load(
    model: nn.Module,
    optimizer: Optimizer | None,
    directory: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Reads `directory` into `model` and `optimizer`, in place. Collective.

    World size, plan and grouping of the optimizer's parameters may differ from those that saved; names, shapes, dtypes
    and the optimizer's class may not. `optimizer=None` reads only the model.

    Where no checkpoint stands under that name because a save was killed at its end, the one beside it is read.

    Raises FormatError, on all ranks and with nothing changed, where the checkpoint is incomplete, damaged, of another
    model or of another optimizer; its `field` names the parameter.
    """
    look_at_tree(model)
    together = Together(process_group or _group_of(model), "osdp.load")
    step = f"loading {os.fspath(directory)!r:.200}"
    folder, manifest, checksum = _do(together, step, lambda: _opened(directory))
    _must_be_the_same(folder, together.all(checksum))

    def checked() -> tuple[State, list[Reading], list[int]]:
        state = State.of_load(model, optimizer, manifest)
        wanted = readings(state.tensors(manifest, _WHOLE), manifest)
        check_files(folder, manifest, together.rank, together.world_size)
        return state, wanted, check(folder, wanted)

    state, wanted, checksums = _do(together, step, checked)
    _do(together, step, lambda: _fill(folder, wanted, checksums))
    state.install()
    folder.close()


def _group_of(model: nn.Module) -> dist.ProcessGroup | None:
    sharded = sharded_of(model)
    return None if sharded is None else sharded.group


def _token() -> str:
    return os.urandom(4).hex()


def _do(together: Together, step: str, work: Callable[[], T]) -> T:
    """`Together.do`, with an error of the system as one of ours."""

    def typed() -> T:
        try:
            return work()
        except OSError as error:
            raise OSDPError(f"{step} failed on rank {together.rank}: {error}") from error

    return together.do(step, typed)


def _begin(target: Path, token: str) -> Partial:
    check_target(target)
    recover(target)
    return Partial(target, token)


def _written(folder: Folder, boxes: Boxes, rank: int) -> tuple[Boxes, dict[str, FileEntry]]:
    """This rank's boxes, and the files that it wrote."""
    names = {row[2] for rows in boxes.values() for row in rows}
    if rank == 0:
        names.add(_METADATA_NAME)
    return boxes, {name: FileEntry(*folder.checksum(name)) for name in sorted(names)}


def _complete(
    partial: Partial | None,
    folder: Folder,
    manifest: Manifest,
    written: list[tuple[Boxes, dict[str, FileEntry]]],
) -> None:
    if partial is not None:  # rank 0's
        partial.complete(_described(folder, manifest, written))


def _described(
    folder: Folder,
    manifest: Manifest,
    written: list[tuple[Boxes, dict[str, FileEntry]]],
) -> bytes:
    """The manifest's text: FormatError where what the ranks wrote is not all of every tensor."""
    boxes: dict[str, tuple[Row, ...]] = {}
    files: dict[str, FileEntry] = {}
    for rank, (of_rank, files_of_rank) in enumerate(written):
        for key, rows in of_rank.items():
            boxes[key] = (*boxes.get(key, ()), *rows)
        for name, entry in files_of_rank.items():
            if not folder.has(name) or folder.size(name) != entry.bytes:
                raise OSDPError(
                    f"rank {rank} wrote {folder / name}, which rank 0 does not see: save to a directory on a file system "
                    "that all ranks share"
                )
            files[name] = entry
    return dumps(replace(manifest, boxes=boxes, files=files))


def _opened(directory: str | os.PathLike[str]) -> tuple[Folder, Manifest, int]:
    try:
        folder = Folder(found(Path(directory)))
    except (OSError, ValueError) as error:  # ValueError: a null character
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{os.fspath(directory)!r:.200} is not a checkpoint: {error}") from None
    return folder, read_manifest(folder), folder.checksum(FILE_NAME)[1]


def _must_be_the_same(folder: Folder, checksums: list[int]) -> None:
    for rank, checksum in enumerate(checksums):
        if checksum != checksums[0]:
            raise FormatError(
                f"rank {rank} and rank 0 see different checkpoints at {folder}: it must be on a file system that all "
                "ranks share, and not be replaced meanwhile"
            )


def _fill(folder: Folder, wanted: list[Reading], checksums: list[int]) -> None:
    try:
        fill(folder, wanted, checksums)
    except FormatError as error:
        raise FormatError(
            f"{error}: while it was loaded, after all of it had been checked. The model holds a part of it now: load again",
            error.field,
        ) from None


def _failure(what: str, error: CheckpointException) -> OSDPError:
    rank, (cause, _) = min(error.failures.items())
    message = f"{what} failed on rank {rank}: {type(cause).__name__}: {cause}"
    return FormatError(message, cause.field) if isinstance(cause, FormatError) else OSDPError(message)
