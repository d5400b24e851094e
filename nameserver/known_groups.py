"""Names of the groups that ever registered: one small text file, and the directory's lock.

It lets a starting nameserver answer "not ready yet" instead of "no such topic" while brokers
register again (docs/formats/ha.md, section 1.5). Derived data: without the file a restart answers
TOPIC_NOT_FOUND for up to a second.

    line 1          "cometmq known groups 1"
    line 2          number of names
    further lines   one name each
"""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

_HEADER = "cometmq known groups 1"
_FILE = "known-groups"
_LOCK = "namesrv.lock"


class DirectoryLockedError(Exception):
    """Another process uses the directory; the text tells what to do."""


class KnownGroups:
    """The file in `directory`; with an empty directory name nothing is stored."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        self._lock_fd: int | None = None

    def open(self) -> frozenset[str]:
        """Lock the directory and read the names. Raises DirectoryLockedError."""
        if self._directory is None:
            return frozenset()
        self._directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._directory / _LOCK, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DirectoryLockedError(
                f"Another nameserver uses {self._directory}: stop it, or give this one another"
                " namesrvDataDir."
            ) from None
        self._lock_fd = fd
        return _read(self._directory / _FILE)

    def save(self, names: Iterable[str]) -> None:
        """Replace the file atomically."""
        if self._directory is None:
            return
        ordered = sorted(set(names))
        path = self._directory / _FILE
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write("\n".join((_HEADER, str(len(ordered)), *ordered)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def close(self) -> None:
        """Release the directory's lock."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _read(path: Path) -> frozenset[str]:
    """Return the names; a file that contradicts its own header counts as empty (it is only a
    hint)."""
    if not path.exists():
        return frozenset()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != [_HEADER] or len(lines) < 2 or lines[1] != str(len(lines) - 2):
        return frozenset()
    return frozenset(lines[2:])
