"""Folder: reads a checkpoint's directory, whose contents are not trusted.

The directory is held open, so that a checkpoint can be read completely even if it is renamed or replaced
meanwhile. Only regular files are opened: no symbolic links (they could lead anywhere), pipes or sockets
(reading could block forever) or devices.
"""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path

from osdp.errors import FormatError

_BLOCK = 1 << 20
_KEPT_OPEN = 200  # files; others are opened again for each read


def is_file_name(name: str) -> bool:
    """Whether `name` can be the name of a file in a directory: not a path, and without characters that
    truncate it in system calls."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\0"} and len(os.fsencode(name)) <= 255


class Folder:
    """The directory `path`, which may be a symbolic link to one. FormatError if it is not a directory or
    cannot be read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise FormatError(f"{path}: no such directory") from None
        except (OSError, ValueError) as error:  # ValueError: a null character
            raise FormatError(f"{path!s:.200} cannot be read as a checkpoint directory: {error}") from None
        self._files: dict[str, int] = {}

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the directory and its files. A second call does nothing."""
        for fd in (*getattr(self, "_files", {}).values(), getattr(self, "_fd", -1)):
            if fd >= 0:
                os.close(fd)
        self._files, self._fd = {}, -1

    def has(self, name: str) -> bool:
        """Whether the name exists in the directory."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FormatError(f"{self / name} cannot be read: {error.strerror}", f"files.{name}") from None
        return True

    def size(self, name: str) -> int:
        with self._opened(name) as file:
            return os.fstat(file.fd).st_size

    def read(self, name: str, begin: int, length: int) -> bytes:
        """`length` bytes of a file, from `begin`; FormatError if the file is shorter."""
        parts = []
        with self._opened(name) as file:
            while length > 0:
                try:
                    part = os.pread(file.fd, min(length, 1 << 30), begin)
                except (OSError, OverflowError) as error:
                    raise self._unreadable(name, error) from None
                if not part:
                    raise FormatError(f"{self / name} is damaged: truncated at byte {begin}", f"files.{name}")
                parts.append(part)
                begin += len(part)
                length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self, name: str, limit: int) -> bytes:
        """A whole file; FormatError if it is larger than `limit` bytes."""
        size = self.size(name)
        if size > limit:
            raise FormatError(
                f"{self / name} has {size} bytes; OSDP reads at most {limit} of it", f"files.{name}"
            )
        return self.read(name, 0, size)

    def checksum(self, name: str) -> tuple[int, int]:
        """Size and CRC-32 of a file."""
        size = crc = 0
        with self._opened(name) as file:
            while True:
                try:
                    block = os.pread(file.fd, _BLOCK, size)
                except OSError as error:
                    raise self._unreadable(name, error) from None
                if not block:
                    return size, crc
                size += len(block)
                crc = zlib.crc32(block, crc)

    def _opened(self, name: str) -> _Opened:
        if name in self._files:
            return _Opened(self._files[name], keep=True)
        if not is_file_name(name):
            raise FormatError(f"{self}: {name!r:.80} is not a file name", "files")
        try:
            # Opening a device could have an effect on it, so its type is checked first; O_NOFOLLOW and the
            # second check detect a replacement in between.
            _must_be_file(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            fd = os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            raise self._unreadable(name, error) from None
        try:
            _must_be_file(os.fstat(fd))
        except OSError as error:
            os.close(fd)
            raise self._unreadable(name, error) from None
        keep = len(self._files) < _KEPT_OPEN
        if keep:
            self._files[name] = fd
        return _Opened(fd, keep)

    def _unreadable(self, name: str, error: Exception) -> FormatError:
        why = getattr(error, "strerror", None) or error
        return FormatError(f"{self / name} cannot be read: {why}", f"files.{name}")


class _Opened:
    def __init__(self, fd: int, keep: bool) -> None:
        self.fd, self.keep = fd, keep

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.keep:
            os.close(self.fd)


def _must_be_file(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {
            stat.S_IFLNK: "a symbolic link",
            stat.S_IFDIR: "a directory",
            stat.S_IFIFO: "a pipe",
            stat.S_IFSOCK: "a socket",
            stat.S_IFCHR: "a device",
            stat.S_IFBLK: "a device",
        }
        kind = kinds.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(None, f"it is {kind}; a checkpoint holds only regular files")
