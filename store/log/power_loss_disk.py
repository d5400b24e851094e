"""A disk that records what was flushed, so that a test can simulate a power loss.

    <store>/shadow/<segment's name>     the bytes of each log segment at its last successful flush

A killed process loses nothing, because the page cache survives it; a power loss takes pages that
were written and not flushed. `PowerLossDisk` is the real disk; after every successful fdatasync or
fsync of a log segment it copies what was written before the call into the segment's shadow.
`drills/power_loss.py` then mixes both, page by page. For tests only: a broker with
`testHooks=true` whose store has the folder `shadow`. Only segments have shadows: all other files
are derived from them, or flushed when written.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..format.disk import Disk

FOLDER: Final = "shadow"
_COPY_BYTES: Final = 1 << 20


class PowerLossDisk(Disk):
    """See the module docstring; `root` is the store's directory."""

    __slots__ = ("_dirty", "_lock", "_log", "_shadow")

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._log = os.path.realpath(root / "commitlog")
        self._shadow = root / FOLDER
        self._shadow.mkdir(parents=True, exist_ok=True)
        #: Ranges that this process wrote to a segment since its last flush; a segment without an
        #: entry may hold unflushed bytes of an earlier process.
        self._dirty: dict[str, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()  # flush threads call too

    @classmethod
    def wanted(cls, root: Path) -> bool:
        """Return whether a test created the folder `shadow`."""
        return (root / FOLDER).is_dir()

    # -- what the store calls -----------------------------------------------------------------

    def write_log(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        done = super().write_log(descriptor, data, position)
        self._note(descriptor, position, position + done)
        return done

    def pwrite(self, descriptor: int, data: bytes | memoryview, position: int) -> int:
        done = super().pwrite(descriptor, data, position)
        self._note(descriptor, position, position + done)
        return done

    def fdatasync(self, descriptor: int) -> None:
        name, ranges = self._begin(descriptor)
        super().fdatasync(descriptor)
        self._copy(descriptor, name, ranges)

    def fsync(self, descriptor: int) -> None:
        name, ranges = self._begin(descriptor)
        super().fsync(descriptor)
        self._copy(descriptor, name, ranges)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if os.path.dirname(os.path.realpath(path)) == self._log:
            name = os.path.basename(path)
            with self._lock:
                self._dirty.pop(name, None)
            with suppress(FileNotFoundError):
                os.unlink(self._shadow / name)

    # -- shadows ------------------------------------------------------------------------------

    def _name(self, descriptor: int) -> str:
        """Return the segment's name, or "" for another file."""
        folder, name = os.path.split(os.readlink(f"/proc/self/fd/{descriptor}"))
        return name if folder == self._log and name.isdecimal() else ""

    def _note(self, descriptor: int, begin: int, end: int) -> None:
        name = self._name(descriptor)
        if name:
            with self._lock:
                if name in self._dirty:
                    self._dirty[name].append((begin, end))

    def _begin(self, descriptor: int) -> tuple[str, list[tuple[int, int]] | None]:
        """Return the ranges that a flush starting now covers; None: the whole segment."""
        name = self._name(descriptor)
        with self._lock:
            ranges = self._dirty.get(name)
            if name:
                self._dirty[name] = []
        return name, ranges

    def _copy(self, descriptor: int, name: str, ranges: list[tuple[int, int]] | None) -> None:
        if not name:
            return
        size = os.fstat(descriptor).st_size
        shadow = os.open(self._shadow / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(shadow).st_size < size:
                os.ftruncate(shadow, size)
            for begin, end in [(0, size)] if ranges is None else ranges:
                for at in range(begin, end, _COPY_BYTES):
                    data = os.pread(descriptor, min(_COPY_BYTES, end - at), at)
                    if data.strip(b"\0") or ranges is not None:
                        os.pwrite(shadow, data, at)
                    else:
                        _clear(shadow, at, len(data))
        finally:
            os.close(shadow)


def _clear(shadow: int, at: int, size: int) -> None:
    """Write zeros, skipping ranges that are zero: shadows stay sparse."""
    if os.pread(shadow, size, at).strip(b"\0"):
        os.pwrite(shadow, bytes(size), at)
