"""In-sync sets of static groups on disk: after a restart of all nameservers a promotion still knows
which replicas hold everything confirmed (docs/formats/ha.md, section 6.14).

One record for each group in `in-sync-sets` of the data directory. A registration is answered once
its set is durable, because the leader acts on the sets that a majority of the nameservers has.
"""

import asyncio
import logging
from pathlib import Path

from ..proto import v1
from .messages import in_sync_from, in_sync_message
from .record_file import DamagedFileError, RecordFile
from .rows import InSyncSet

logger = logging.getLogger(__name__)

_FILE = "in-sync-sets"


class InSyncSets:
    """The file in `directory`; with an empty directory name nothing is stored."""

    def __init__(self, directory: str) -> None:
        self._file = RecordFile(Path(directory) / _FILE) if directory else None
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
            if self._file is None or self._sets.get(group) == found:
                return
            changes = {group: in_sync_message(found).SerializeToString()}
            await asyncio.to_thread(self._file.put, changes)
            self._sets[group] = found

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
