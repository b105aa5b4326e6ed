"""Checkpoints: those of a run, a directory for each step, written while training goes on.

    run/step-00000900           complete checkpoints, the last `keep` of them
    run/step-00001000
    run/latest -> step-00001000    replaced last, atomically: it always names a complete one

Note [Old checkpoints go whole]
A checkpoint that is no longer kept is renamed, then its manifest is removed, then the other files: a run
killed at any moment leaves no incomplete directory that looks like a checkpoint. The next run removes the
remaining files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from osdp.base import byte_sizes
from osdp.checkpoint import places, save_load
from osdp.checkpoint.background import Background
from osdp.checkpoint.folder import Folder
from osdp.checkpoint.saving import Saving, typed_do
from osdp.errors import DisagreementError, FormatError, InvalidProblemError, ShardingError
from osdp.ranks.rank_group import Together, first_unlike

LATEST = "latest"
EXTRA_NAME = "extra.json"
_EXTRA_BYTES = 64 << 20
_STEP = re.compile(r"step-([0-9]{8,18})")


class Checkpoints:
    """The checkpoints in the directory `folder`, on a file system that all ranks share; it is created if
    missing.

    `keep`: the number of checkpoints to keep, the last ones and the one that `latest` names; None: all.
    `copy_limit`: bytes ("2GiB") of host memory that a background save may use on each rank; the rest of the
    rank's share is written before `save` returns. None: the whole share, which is `share_bytes` (with AdamW
    in fp32 and FULL_SHARD, 12 bytes per parameter divided by the number of ranks). There is never more than
    one copy: a save waits for the previous one.

    Leaving a `with` block waits for the last save; after an exception it only stops this rank's writing.
    Raises InvalidProblemError if `keep` is not a positive integer or None.

    >>> checkpoints = osdp.Checkpoints("run", keep=3)
    >>> for step in range(checkpoints.load(model, optimizer), steps):
    ...     train(step)
    ...     if (step + 1) % 1000 == 0:
    ...         checkpoints.save(model, optimizer, step + 1)
    >>> checkpoints.wait()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        copy_limit: int | str | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
            raise InvalidProblemError(
                f"keep must be an integer of at least 1, or None to keep all checkpoints, got {keep!r}"
            )
        self.folder = Path(folder)
        self.keep = keep
        self.extra: dict[str, Any] = {}  # of the loaded checkpoint
        self.share_bytes = 0  # of the last checkpoint, that this rank wrote or is writing
        self.copied_bytes = 0  # of these, copied to host memory for writing
        self._copy_limit = None if copy_limit is None else byte_sizes.parse_bytes(copy_limit)
        self._group = process_group
        self._background: tuple[Background, Together] | None = None

    def save(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        step: int,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin to save as `step`; returns when this rank's share is copied. Collective.

        `extra`: values that JSON can represent, such as a scheduler's state; rank 0's is saved, and is in
        `extra` after loading.

        Raises, on all ranks, the error of the previous save (then this one is not begun), those of
        `osdp.save`, InvalidProblemError for a bad `step`, ShardingError for an `extra` that JSON cannot
        represent, and DisagreementError if ranks save different steps.
        """
        self.wait()
        together = Together(self._group or save_load.group_of(model), "osdp.Checkpoints.save")
        names = together.all(typed_do(together, "saving", lambda: _name(step)))
        name = names[together.rank]
        if other := first_unlike(names):
            raise DisagreementError(
                f"{together.name(other)} saves {names[other]} and {together.name(0)} saves {names[0]}: all ranks must save "
                "the same step"
            )
        text = typed_do(together, f"saving {name}", lambda: _text(step, extra))
        saving = Saving.begin(together, model, optimizer, self.folder / name, {EXTRA_NAME: text})
        try:
            typed_do(together, f"saving {name}", lambda: saving.copy(self._copy_limit))
        except BaseException:
            saving.abandon()
            raise
        self.share_bytes, self.copied_bytes = saving.share_bytes, saving.copied_bytes
        self._background = Background(saving, lambda: self._completed(name)), together

    def wait(self) -> None:
        """Wait until the last save is on disk. Collective; raises its error on all ranks."""
        if self._background is not None:
            (background, together), self._background = self._background, None
            background.wait(together)

    def load(self, model: nn.Module, optimizer: Optimizer | None) -> int:
        """Load the checkpoint that `latest` names (without it: the last complete one), and return its step; 0
        if there is none, with nothing changed. Collective. Raises FormatError like `osdp.load`.
        """
        self.wait()
        self.extra = {}
        together = Together(self._group or save_load.group_of(model), "osdp.Checkpoints.load")
        found = together.all(
            typed_do(
                together, "looking for a checkpoint", self._newest if together.rank == 0 else lambda: None
            )
        )[0]
        if found is None:
            return 0
        save_load.load(model, optimizer, found, process_group=self._group)
        step, self.extra = typed_do(together, f"loading {found}", lambda: _read_extra(found))
        return step

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.wait()
        elif self._background is not None:
            self._background[0].abandon()

    def steps(self) -> list[int]:
        """The steps of the existing complete checkpoints, in ascending order."""
        return sorted(int(match[1]) for path in self._complete() if (match := _STEP.fullmatch(path.name)))

    def _complete(self) -> list[Path]:
        try:
            return [p for p in self.folder.iterdir() if _STEP.fullmatch(p.name) and places.is_complete(p)]
        except FileNotFoundError:
            return []

    def _newest(self) -> Path | None:
        places.recover_all(self.folder, _STEP)
        latest = self.folder / LATEST
        # Of a run that was killed while it replaced `latest`.
        for link in self.folder.glob(f"{LATEST}.partial-*"):
            if link.is_symlink():
                link.unlink(missing_ok=True)
        if latest.is_symlink() and places.is_complete(latest):
            return Path(os.path.realpath(latest))
        return max(self._complete(), key=places.age, default=None)

    def _completed(self, name: str) -> None:
        """Called on rank 0 when the checkpoint `name` is complete."""
        link = self.folder / f"{LATEST}.partial-{os.urandom(4).hex()}"
        link.symlink_to(name, target_is_directory=True)
        try:
            os.replace(link, self.folder / LATEST)
        except OSError as error:
            link.unlink(missing_ok=True)
            raise ShardingError(
                f"{self.folder / LATEST} cannot be moved to {name}: {error.strerror}"
            ) from error
        if self.keep is not None:
            kept = os.path.realpath(self.folder / LATEST)
            for path in sorted(self._complete(), key=places.age)[: -self.keep]:
                if os.path.realpath(path) != kept:
                    places.remove(path)


def _name(step: int) -> str:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
        raise InvalidProblemError(f"step must be an integer from 0 to 10**18 - 1, got {step!r}")
    return f"step-{step:08d}"


def _text(step: int, extra: Mapping[str, Any] | None) -> bytes:
    try:
        text = json.dumps({"step": step, "extra": dict(extra or {})}, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ShardingError(
            f"extra cannot be saved: {error}; it may hold numbers, strings, lists and dicts"
        ) from None
    if len(text) > _EXTRA_BYTES:
        raise ShardingError(f"extra is {len(text)} bytes of JSON; a checkpoint holds at most {_EXTRA_BYTES}")
    return text


def _read_extra(directory: Path) -> tuple[int, dict[str, Any]]:
    """(step, extra) of a checkpoint that was just loaded and therefore checked."""
    with contextlib.closing(Folder(directory)) as folder:
        if not folder.has(EXTRA_NAME):  # saved by osdp.save
            match = _STEP.fullmatch(directory.name)
            return int(match[1]) if match else 0, {}
        document = json.loads(folder.read_all(EXTRA_NAME, _EXTRA_BYTES))
    match document:
        case {"step": int(step), "extra": dict(extra)}:
            return step, extra
    raise FormatError(f"{directory / EXTRA_NAME} was not written by OSDP", f"files.{EXTRA_NAME}")
