"""save and load: checkpoints that fit any world size and any plan, and never make a full tensor.

    osdp.save(model, optimizer, "run/step-1000")     # collective: every rank calls it
    osdp.load(model, optimizer, "run/step-1000")     # other ranks, another plan, or one process without any

A checkpoint is a directory of files of torch.distributed.checkpoint (DCP) and `manifest.json` (see osdp/manifest.py).

Note [When a checkpoint is valid]
Ranks write into a directory beside the target; when all are done, rank 0 adds the manifest with every file's size and
checksum, and renames the directory: a run that dies while saving leaves the previous checkpoint as it was. Loading
first checks manifest, files and table of boxes against the model and optimizer, on all ranks, and only when none
objects does it change anything.
"""

from __future__ import annotations

import os
import shutil
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.optim import Optimizer

from osdp.checkpoint_state import State, sharded_of
from osdp.checkpoint_storage import (
    ChunkLoadPlanner,
    ChunkReader,
    ChunkSavePlanner,
    check_cover,
    read_items,
    read_metadata,
)
from osdp.errors import FormatError, OSDPError, ShardingError
from osdp.manifest import FILE_NAME, FileEntry, Manifest, read_manifest
from osdp.together import Together

_READ_BYTES = 1 << 20


def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    directory: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Writes parameters, buffers (rank 0's) and the optimizer's state to `directory`. Collective.

    `model`: sharded or not; `optimizer`: made over its parameters, or None. `directory`: on a file system that all
    ranks share. An older checkpoint there is replaced once the new one is complete. `process_group`: by default the one
    over which the model is sharded, else all ranks; without any, one process saves. Each rank writes what it holds;
    what all ranks hold is written once, spread over them.

    Raises ShardingError where `directory` holds something else than a checkpoint or a state cannot be described,
    OSDPError where writing failed on some rank. Both on all ranks, and an older checkpoint is still there then.
    """
    target = Path(directory)
    together = Together(process_group or _group_of(model))
    partial = target.with_name(f"{target.name}.partial-{together.first(_token)}")
    together.do(f"preparing {target}", lambda: _check_target(target))
    try:
        state = together.do(f"saving {target}", lambda: State.of_save(model, optimizer))
        manifest = state.agree(together)
        planner = together.do(f"saving {target}", lambda: ChunkSavePlanner(state.tensors(manifest)))
        try:
            with warnings.catch_warnings():  # DCP warns that one process saves alone; here that is meant
                warnings.simplefilter("ignore")
                writer = FileSystemWriter(partial)
                dcp_save(
                    {},
                    storage_writer=writer,
                    planner=planner,
                    process_group=together.group,
                    no_dist=together.alone,
                )
        except CheckpointException as error:
            raise _failure(f"saving {target}", error) from error
        files = together.do(f"checking {partial}", lambda: _checksums(partial, together))
        merged = {name: entry for part in together.all(files) for name, entry in part.items()}
        complete = replace(manifest, files=merged)
        together.do(f"completing {target}", lambda: _complete(partial, target, complete, together.rank))
    except BaseException:
        if together.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
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

    Raises FormatError, on all ranks and with nothing changed, where the checkpoint is incomplete, damaged, of another
    model or of another optimizer; its `field` names the parameter.
    """
    source = Path(directory)
    together = Together(process_group or _group_of(model))

    def check() -> tuple[State, ChunkReader, ChunkLoadPlanner]:
        manifest = read_manifest(source)
        metadata = read_metadata(source)
        check_cover(metadata.state_dict_metadata, manifest.tensors())
        _check_files(source, manifest, metadata.storage_data, together)
        state = State.of_load(model, optimizer, manifest)
        tensors = state.tensors(manifest)
        read_items(tensors, metadata)
        return state, ChunkReader(source, metadata), ChunkLoadPlanner(tensors)

    state, reader, planner = together.do(f"loading {source}", check)
    try:
        with warnings.catch_warnings():  # see save
            warnings.simplefilter("ignore")
            dcp_load(
                {},
                storage_reader=reader,
                planner=planner,
                process_group=together.group,
                no_dist=together.alone,
            )
    except CheckpointException as error:
        raise _failure(f"loading {source}", error) from error
    state.install()


def _group_of(model: nn.Module) -> dist.ProcessGroup | None:
    sharded = sharded_of(model)
    return None if sharded is None else sharded.group


def _token() -> str:
    return os.urandom(4).hex()


def _check_target(target: Path) -> None:
    if (
        target.exists()
        and not (target / FILE_NAME).exists()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise ShardingError(
            f"{target} exists and is not a checkpoint: it is not replaced. Save to another directory, or remove it."
        )


def _checksums(directory: Path, together: Together) -> dict[str, FileEntry]:
    """Size and checksum of this rank's share of the files, which need not be those that it wrote."""
    names = sorted(p.name for p in directory.glob("*.distcp"))
    return {name: _checksum(directory / name) for name in names[together.rank :: together.world_size]}


def _checksum(path: Path) -> FileEntry:
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return FileEntry(size, crc)


def _complete(partial: Path, target: Path, manifest: Manifest, rank: int) -> None:
    """Rank 0 writes the manifest and gives the directory its name."""
    if rank != 0:
        return
    with (partial / FILE_NAME).open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    older = target.with_name(f"{partial.name}-replaced")
    if target.exists():
        target.rename(older)
    partial.rename(target)
    shutil.rmtree(older, ignore_errors=True)


def _check_files(source: Path, manifest: Manifest, storage_data: object, together: Together) -> None:
    """That the table refers to files of the manifest only, and that this rank's share of them is undamaged."""
    assert isinstance(storage_data, dict)
    for index, info in storage_data.items():
        entry = manifest.files.get(info.relative_path)
        if entry is None or not 0 <= info.offset <= info.offset + info.length <= entry.bytes:
            raise FormatError(
                f"{source}: {index.fqn} lies in {info.relative_path!r:.80}, bytes {info.offset} to "
                f"{info.offset + info.length}, which the manifest does not list",
                field=index.fqn,
            )
    for name in manifest.files:
        if Path(name).name != name:
            raise FormatError(
                f"{source}: the manifest lists {name!r:.80}, which is not a file's name", f"files.{name}"
            )
    for name in sorted(manifest.files)[together.rank :: together.world_size]:
        try:
            found = _checksum(source / name)
        except OSError as error:
            raise FormatError(f"{source}: {name} cannot be read: {error}", field=f"files.{name}") from None
        if found != manifest.files[name]:
            raise FormatError(
                f"{source}: {name} is damaged: {found.bytes} bytes with checksum {found.crc32:08x}, should be "
                f"{manifest.files[name].bytes} with {manifest.files[name].crc32:08x}",
                field=f"files.{name}",
            )


def _failure(what: str, error: CheckpointException) -> OSDPError:
    rank, (cause, _) = min(error.failures.items())
    message = f"{what} failed on rank {rank}: {type(cause).__name__}: {cause}"
    return FormatError(message, cause.field) if isinstance(cause, FormatError) else OSDPError(message)
