"""Files of a backup and of a restored store: private, checked, and complete or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

from ...operations.errors import CliError
from .manifest import SavedFile

_PRIVATE = 0o600
_PRIVATE_FOLDER = 0o700
_CHUNK_BYTES = 4 << 20
#: Disk space that stays free for everything else.
_SPARE_BYTES = 64 << 20


class Writer:
    """A new file of mode 0600, its size and checksum."""

    def __init__(self, path: Path) -> None:
        """Raise OSError, also if the file exists."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, _PRIVATE), "wb")
        self._bytes = self._crc = 0

    def write(self, data: bytes) -> None:
        """Append. Raises OSError."""
        self._file.write(data)
        self._bytes += len(data)
        self._crc = crc32(data, self._crc)

    def close(self, *, size: int = 0) -> SavedFile:
        """Make the file durable, `size` bytes long if this is more. Raises OSError."""
        self._file.flush()
        if size > self._bytes:
            os.posix_fallocate(self._file.fileno(), self._bytes, size - self._bytes)
        os.fsync(self._file.fileno())
        self._file.close()
        return SavedFile(self._bytes, self._crc)


def chunks(path: Path, wanted: SavedFile, progress: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the content of a file of a backup. Raises CliError if it is not the saved one.

    The last chunk comes before the check: use it only behind the end of the iteration.
    """
    size = crc = 0
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                size += len(data)
                crc = crc32(data, crc)
                progress(len(data))
                yield data
    except OSError as error:
        raise CliError(f"The backup is incomplete: {path}: {error.strerror}.") from None
    if (size, crc) != (wanted.bytes, wanted.crc32):
        raise CliError(
            f"The backup is damaged: {path} has {size} bytes with the checksum {crc:08x}, but"
            f" {wanted.bytes} with {wanted.crc32:08x} were saved."
        )


def check_space(path: Path, needed_bytes: int) -> None:
    """Raise CliError if the disk of a folder has less space than needed."""
    free = shutil.disk_usage(path).free
    if free < needed_bytes + _SPARE_BYTES:
        raise CliError(
            f"{path} has {free >> 20} MiB of free disk space, but"
            f" {(needed_bytes + _SPARE_BYTES) >> 20} MiB are needed."
        )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path` that becomes `path` at the end; a failure leaves nothing.

    Raises CliError if `path` exists and is not an empty folder.
    """
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise CliError(f"{path} exists: give a new folder, or an empty one.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.absolute().with_name(f".{path.absolute().name}.{os.getpid()}.tmp")
    temporary.mkdir(mode=_PRIVATE_FOLDER)
    try:
        yield temporary
        for folder in (temporary, *(each for each in temporary.rglob("*") if each.is_dir())):
            sync_folder(folder)
        temporary.rename(path)
        sync_folder(path.absolute().parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
