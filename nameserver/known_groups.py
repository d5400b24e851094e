"""What a nameserver stores of groups: two small files, and the lock of the directory.

`known-groups` lets a nameserver that has restarted answer "not up" instead of "no such topic" until
the brokers have registered again (docs/formats/ha.md, section 1.5). A group stays in it until an
operator removes it. Without the file a restart answers TOPIC_NOT_FOUND for a group that is not up.

    line 1          "cometmq known groups 1"
    line 2          number of names
    further lines   one name each

`in-sync-sets` has a record for each static group: after a restart of all nameservers a promotion
still knows which replicas hold everything confirmed (section 6.14). A registration is answered once
its set is durable, because the leader acts on the sets that a majority of the nameservers has.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ..proto import v1
from .messages import in_sync_from, in_sync_message
from .record_file import DamagedFileError, RecordFile
from .rows import InSyncSet

logger = logging.getLogger(__name__)

_HEADER = "cometmq known groups 1"
_FILE = "known-groups"
_SETS_FILE = "in-sync-sets"
_LOCK = "namesrv.lock"


class DirectoryLockedError(Exception):
    """Another process uses the directory; the text tells what to do."""


class KnownGroups:
    """The file in `directory`; with an empty directory name nothing is stored."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None
        self._lock_fd: int | None = None

    def open(self) -> frozenset[str]:
        """Lock the directory and read the names. Raises DirectoryLockedError, OSError, and
        ValueError for a damaged file."""
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


class InSyncSets:
    """The file in `directory`; with an empty directory name the sets are in memory only."""

    def __init__(self, directory: str) -> None:
        self._file = RecordFile(Path(directory) / _SETS_FILE) if directory else None
        self._lock = asyncio.Lock()
        self._sets: dict[str, InSyncSet] = {}

    def open(self) -> None:
        """Read the file, whose directory is locked. A damaged one is set aside: its sets are
        unknown. Raises OSError."""
        if self._file is None:
            return
        try:
            self._file.open()
        except DamagedFileError as error:
            aside = self._file.set_aside()
            logger.warning("in_sync_sets.damaged moved_to=%s error=%s", aside, error)
            self._file.open()
        for group, value in self._file.values.items():
            self._sets[group] = in_sync_from(v1.InSyncSet.FromString(value))

    def of(self, group: str) -> InSyncSet | None:
        """Return the set of a group, also of one whose registrations are lost."""
        return self._sets.get(group)

    async def put(self, group: str, found: InSyncSet) -> None:
        """Store a set; calls are done in their order. Raises OSError."""
        async with self._lock:
            if self._sets.get(group) == found:
                return
            if self._file is not None:
                changes = {group: in_sync_message(found).SerializeToString()}
                await asyncio.to_thread(self._file.put, changes)
            self._sets[group] = found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _read(path: Path) -> frozenset[str]:
    """Return the names. Raises ValueError if the file contradicts its own header: without its names
    a topic of a group that is not up would be denied, and created again elsewhere."""
    if not path.exists():
        return frozenset()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if lines[:1] != [_HEADER] or len(lines) < 2 or lines[1] != str(len(lines) - 2):
        raise ValueError(
            f"{path} is damaged: restore it, or move it away (until a group that is not up has"
            " registered again, its topics are then answered as if they did not exist)."
        )
    return frozenset(lines[2:])
