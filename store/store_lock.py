"""Exclusive use of a store directory: the files `lock` and `abort`.

`lock` holds the four bytes "lock"; its byte 0 is locked with fcntl, as the format requires, so that
an Apache broker and this one exclude each other, and the file with flock, which also excludes a
second store in the same process. The lock is taken before anything is read. `abort` exists while a
store runs and holds the process id: finding it on start means that the last run did not stop
cleanly (docs/formats/store-format.md, sections 1 and 6.1). It also stays after a clean stop with
records that are not dispatched, because Apache would not dispatch them otherwise (section 6.7);
then its content is `stopped`, which is a clean stop for this store.
"""

import fcntl
import os
from pathlib import Path

from .format.disk import NO_SPACE, Disk
from .format.errors import DiskFullError, StoreError, StoreLockedError
from .log.write_gate import suppress_no_space

_LOCK_BYTES = b"lock"
_STOPPED = b"stopped"


class StoreLock:
    """Lock and abort file of one directory."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._abort = root / "abort"
        self._disk = disk
        self._descriptor = -1

    def acquire(self) -> None:
        """Take the lock. Raises StoreLockedError when another store holds it, StoreError when
        this process may not write the directory, DiskFullError when there is no space for a new
        store."""
        try:
            descriptor = self._open_lock()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreLockedError(
                f"The store directory {self._root} is in use by another process"
                f"{self._owner()}. Stop it, or give this one another storePathRootDir."
            ) from error
        self._descriptor = descriptor
        if os.pread(descriptor, len(_LOCK_BYTES) + 1, 0) != _LOCK_BYTES:
            with suppress_no_space():  # only the locks matter, not the content
                self._disk.truncate(descriptor, 0)
                self._disk.pwrite(descriptor, _LOCK_BYTES, 0)
                self._disk.fsync(descriptor)

    def _open_lock(self) -> int:
        if not self._root.is_dir():
            self._root.mkdir(parents=True)
            self._disk.sync_directory(str(self._root.parent))
        return self._disk.open(str(self._root / "lock"), os.O_RDWR | os.O_CREAT)

    def _unusable(self, error: OSError) -> StoreError:
        if error.errno in NO_SPACE:
            return DiskFullError(
                f"No disk space for the store directory {self._root}: free some space."
            )
        return StoreError(
            f"The store directory {self._root} cannot be used: {error.strerror}. Start as its "
            "owner, on a file system that is mounted for writing, or name another storePathRootDir."
        )

    def _owner(self) -> str:
        try:
            process = self._abort.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return f" (process {process})" if process.isdigit() else ""

    @property
    def stopped_cleanly(self) -> bool:
        try:
            return self._abort.read_bytes() == _STOPPED
        except FileNotFoundError:
            return True

    def mark_running(self) -> None:
        """Write `abort`: the next start is unclean unless `mark_stopped` is called.

        Raises StoreError when the file cannot be created: an unmarked store must not run.
        """
        self._write(str(os.getpid()).encode())

    def mark_stopped(self, *, is_dispatched: bool) -> None:
        """Mark the stop as clean. `is_dispatched`: all records are in their queues."""
        if not is_dispatched:
            self._write(_STOPPED)
            return
        self._disk.unlink(str(self._abort))
        self._disk.sync_directory(str(self._root))

    def _write(self, data: bytes) -> None:
        path = str(self._abort)
        try:
            descriptor = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            with suppress_no_space():  # only the name matters; the number is for operators
                self._disk.pwrite(descriptor, data, 0)
            self._disk.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._disk.sync_directory(str(self._root))

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
