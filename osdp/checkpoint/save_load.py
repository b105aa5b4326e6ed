"""save and load: checkpoints that fit any world size and any plan, without creating full tensors.

    osdp.save(model, optimizer, "run/step-1000")     # collective: every rank calls it
    osdp.load(model, optimizer, "run/step-1000")     # other ranks, another plan, or one process without any

A checkpoint is a directory of files of torch.distributed.checkpoint (DCP) and `manifest.json` (see manifest.py).

Note [When a checkpoint is valid]
Ranks write into a directory beside the target. When all are done, rank 0 adds the manifest with all files'
sizes and checksums, and renames the directory (osdp/checkpoint/places.py): a run that dies while saving
leaves the previous checkpoint intact. Loading first reads and checks everything on all ranks, and changes
something only if no rank has found an error (osdp/checkpoint/reading.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from osdp.base.byte_sizes import format_bytes
from osdp.base.progress import Progress
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.manifest import FILE_NAME, Manifest, read_manifest
from osdp.checkpoint.model_state import State, is_stage, look_at_tree
from osdp.checkpoint.places import found
from osdp.checkpoint.reading import Reading, check, check_files, fill, readings
from osdp.checkpoint.saving import Saving, typed_do
from osdp.checkpoint.stages import part_of
from osdp.errors import FormatError
from osdp.ranks.rank_group import Together, first_unlike
from osdp.sharding.parameter_meshes import all_ranks
from osdp.sharding.sharded_model import sharded_of

_WHOLE = 1 << 62  # bytes: pieces are filled undivided


def save(
    model: nn.Module,
    optimizer: Optimizer | None,
    directory: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Write parameters, buffers (rank 0's) and the optimizer's state to `directory`. Collective.

    `model`: sharded or not; `optimizer`: an optimizer of its parameters, or None. `directory`: on a file
    system that all ranks share. An older checkpoint there is replaced, with all files in its directory, once
    the new one is complete; if it is a symbolic link (`latest`), its target is replaced. `process_group`: by
    default the one over which the model is sharded, else all ranks; without any, one process saves. Each rank
    writes its shards; replicated tensors are written once, divided among the ranks. Of a pipeline (`pipeline.module`) all
    stages are saved, as one model.

    Raises ShardingError if `directory` holds something other than a checkpoint or an optimizer state has an
    unsupported shape, OSDPError if writing failed on some rank. Both are raised on all ranks and leave the
    older checkpoint in place.

    >>> osdp.save(model, optimizer, "checkpoint")
    """
    together = Together(process_group or group_of(model), "osdp.save")
    step = f"saving {os.fspath(directory)!r:.200}"
    saving = Saving.begin(together, model, optimizer, directory)
    try:
        everything = together.all(typed_do(together, step, saving.write))
        typed_do(together, step, lambda: saving.complete(everything))
    except BaseException:
        saving.abandon()
        raise


def load(
    model: nn.Module,
    optimizer: Optimizer | None,
    directory: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Read `directory` into `model` and `optimizer`, in place. Collective.

    World size, plan and grouping of the optimizer's parameters may differ from those at saving; names,
    shapes, dtypes and the optimizer's class may not. `optimizer=None` reads only the model.

    If a save was killed between its two renames and no checkpoint has that name, the new one beside it is
    read.

    Raises FormatError, on all ranks and with nothing changed, if the checkpoint is incomplete, damaged, or of
    a different model or optimizer; its `field` names the parameter.

    >>> osdp.load(model, optimizer, "checkpoint")
    """
    look_at_tree(model)
    together = Together(process_group or group_of(model), "osdp.load")
    step = f"loading {os.fspath(directory)!r:.200}"
    folder, manifest, checksum = typed_do(together, step, lambda: opened(directory))
    if other := first_unlike(together.all(checksum)):
        raise FormatError(
            f"{together.name(other)} and {together.name(0)} see different checkpoints at {folder}: load from a file system "
            "that all ranks share, and do not replace the checkpoint meanwhile"
        )
    if is_stage(model):
        names = typed_do(together, step, lambda: State.names_of(model))
        manifest = part_of(manifest, names, together.all(names))

    def checked() -> tuple[State, list[Reading], list[int]]:
        state = State.of_load(model, optimizer, manifest)
        wanted = readings(state.tensors(manifest, _WHOLE), manifest)
        check_files(folder, manifest, together.rank, together.world_size)
        return state, wanted, check(folder, wanted, _told(progress, "checked", wanted))

    with Progress(f"osdp.load {folder.path.name}") as progress:
        state, wanted, checksums = typed_do(together, step, checked)
        typed_do(together, step, lambda: _fill(folder, wanted, checksums, _told(progress, "loaded", wanted)))
    state.install()
    folder.close()


def group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """The ranks that together hold the model, all its stages if it is one of several; None: it is not sharded."""
    sharded = sharded_of(model)
    return None if sharded is None else sharded.pipeline or all_ranks(sharded)


def opened(directory: str | os.PathLike[str]) -> tuple[Folder, Manifest, int]:
    """A checkpoint's folder, its manifest, and the manifest's checksum."""
    try:
        folder = Folder(found(Path(directory)))
    except (OSError, ValueError) as error:  # ValueError: a null character
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{os.fspath(directory)!r:.200} is not a checkpoint: {error}") from None
    return folder, read_manifest(folder), folder.checksum(FILE_NAME)[1]


def _told(progress: Progress, what: str, wanted: list[Reading]) -> Callable[[int], None]:
    total = format_bytes(sum(reading.box.length for reading in wanted))
    return lambda done: progress(f"{format_bytes(done)} of {total} {what}")


def _fill(folder: Folder, wanted: list[Reading], checksums: list[int], tell: Callable[[int], None]) -> None:
    try:
        fill(folder, wanted, checksums, tell)
    except FormatError as error:
        raise FormatError(
            f"{error} while it was being loaded, after every file had passed its checks. The model is "
            "partly loaded: load again",
            error.field,
        ) from None
