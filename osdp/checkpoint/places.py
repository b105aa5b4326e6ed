"""The directories of checkpoints: the final one, and temporary ones beside it.

    run/last                            the checkpoint
    run/last.partial-1a2b3c4d           being written, or left by a killed run; complete if it has a manifest
    run/last.partial-1a2b3c4d-replaced  the older checkpoint, between the two renames that replace it

Note [Killed between two renames]
A directory that is not empty cannot be replaced atomically, so the older checkpoint is renamed first. A run
killed between the two renames leaves no checkpoint under the name and two complete ones beside it. `found`
then selects the new one. The next save renames it to the final name, and removes the other remains: those
without a manifest were never complete, and those with one are older than the checkpoint that now has the
name. A directory that a live run is writing is left alone: the run holds a lock on a file in it, which is
released when the process ends for any reason. On file systems without such locks nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from pathlib import Path

from osdp.checkpoint.manifest import FILE_NAME
from osdp.errors import ShardingError

LOCK_NAME = "saving.lock"
_LONGEST = 255 - len(".partial-12345678-replaced")
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


def resolved(directory: str | os.PathLike[str]) -> Path:
    """The path with symbolic links resolved. ShardingError for an invalid name."""
    try:
        target = Path(os.path.realpath(directory))
    except (ValueError, OSError) as error:  # ValueError: a null character
        raise ShardingError(f"{os.fspath(directory)!r:.200} is not a valid directory name: {error}") from None
    if not 0 < len(os.fsencode(target.name)) <= _LONGEST:
        raise ShardingError(
            f"{target.name!r:.200} is not a valid checkpoint name: it must have 1 to {_LONGEST} "
            "bytes, so that NAME.partial-... fits next to it"
        )
    return target


def found(directory: Path) -> Path:
    """`directory` or, if it is not a checkpoint, the newest complete one that a killed save left beside
    it."""
    target = Path(os.path.realpath(directory))
    if is_complete(target):
        return target
    return max((p for p in _beside(target) if is_complete(p)), key=age, default=target)


def check_target(target: Path) -> None:
    """ShardingError if something other than a checkpoint exists there, which saving would remove."""
    if target.exists() and not is_complete(target) and (not target.is_dir() or any(target.iterdir())):
        raise ShardingError(
            f"{target} exists and is not a checkpoint, so it is not replaced. Save to another "
            "directory, or remove it."
        )


def recover(target: Path) -> None:
    """Complete or remove what killed saves to `target` left: see Note [Killed between two renames]."""
    dead = [path for path in _beside(target) if not _locked(path)]
    if not is_complete(target):
        newest = max((path for path in dead if is_complete(path)), key=age, default=None)
        if newest is None:
            dead = [path for path in dead if not is_complete(path)]
        else:
            with contextlib.suppress(FileNotFoundError):
                target.rmdir()  # an empty directory may be removed
            newest.rename(target)
            (target / LOCK_NAME).unlink(missing_ok=True)
            dead.remove(newest)
    for path in dead:
        shutil.rmtree(path, ignore_errors=True)


def recover_all(folder: Path, names: re.Pattern[str]) -> None:
    """`recover` for every checkpoint in `folder` whose name matches."""
    found = {path.name.partition(".partial-")[0] for path in folder.glob("*.partial-*")}
    for name in sorted(found):
        if names.fullmatch(name):
            recover(folder / name)


def remove(checkpoint: Path) -> None:
    """Remove a complete checkpoint: Note [Old checkpoints go whole] in checkpoints.py."""
    going = checkpoint.with_name(f"{partial_path(checkpoint, os.urandom(4).hex()).name}-replaced")
    checkpoint.rename(going)
    (going / FILE_NAME).unlink()
    _sync(going)
    shutil.rmtree(going, ignore_errors=True)


class Partial:
    """The directory NAME.partial-TOKEN, locked by this process until `complete` or `abandon`."""

    def __init__(self, target: Path, token: str) -> None:
        self.target = target
        self.path = partial_path(target, token)
        self.path.mkdir(parents=True)
        self._lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def complete(self, manifest: bytes) -> None:
        """Add the manifest and rename the directory to its final name. If two runs save there concurrently,
        the last one wins."""
        write_new(self.path / FILE_NAME, manifest)
        _sync(self.path)
        older = self.path.with_name(f"{self.path.name}-replaced")
        while True:
            with contextlib.suppress(FileNotFoundError):
                self.target.rename(older)
            try:
                self.path.rename(self.target)
                break
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    with contextlib.suppress(OSError):
                        older.rename(self.target)
                    raise
                shutil.rmtree(older, ignore_errors=True)  # another run's checkpoint has the name now
        _sync(self.target.parent)
        (self.target / LOCK_NAME).unlink(missing_ok=True)
        self._unlock()
        shutil.rmtree(older, ignore_errors=True)

    def abandon(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def partial_path(target: Path, token: str) -> Path:
    return target.with_name(f"{target.name}.partial-{token}")


def _beside(target: Path) -> list[Path]:
    name = re.compile(re.escape(target.name) + r"\.partial-[0-9a-f]{8}(-replaced)?")
    try:
        return [
            p for p in target.parent.iterdir() if name.fullmatch(p.name) and p.is_dir() and not p.is_symlink()
        ]
    except OSError:
        return []


def is_complete(path: Path) -> bool:
    """Whether there is a complete checkpoint: a save writes the manifest last."""
    return (path / FILE_NAME).is_file()


def age(path: Path) -> tuple[int, bool]:
    """Sort key: larger for later completion; a save's new checkpoint is larger than the one that it
    replaces."""
    return (path / FILE_NAME).stat().st_mtime_ns, not path.name.endswith("-replaced")


def _locked(path: Path) -> bool:
    """Whether a live run is writing there, or may be if that cannot be determined."""
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return not any(path.iterdir())  # empty: a run may just have created it
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def write_new(path: Path, content: bytes) -> None:
    """A new file, on disk when this returns."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Flush renames in the directory to disk, if the file system supports it."""
    with contextlib.suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
