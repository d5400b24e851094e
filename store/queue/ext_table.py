"""Extension units of all queues.

The files of a queue are listed when it is first written, cut or read through an address, so that a
store without extension units has no cost. Called from the thread of the queues; `take_dirty` also
from the flush thread.
"""

import os
import threading
from collections.abc import Iterable
from typing import Final

from ..format.disk import Disk
from ..format.queue_ext import ExtUnit, QueueExt, is_address
from ..format.queue_files import QueueFiles
from ..format.record_layout import UNIT, UNIT_BYTES
from .consume_queue import ConsumeQueue

#: Units examined from a queue's end for one with an address.
_ADDRESS_UNITS: Final = 800


class ExtTable:
    """`QueueExt` objects by queue, created on first use."""

    def __init__(self, directory: str, file_bytes: int, open_files_max: int, disk: Disk) -> None:
        self._files = QueueFiles(disk, file_bytes, open_files_max, directory)
        self._lock = threading.Lock()
        self._dirty: dict[str, int] = {}  # path -> bytes written since its last flush

    def of(self, queue: ConsumeQueue) -> QueueExt:
        """Return the queue's extension units. Raises UnsupportedLayoutError or OSError."""
        if queue.ext is None:
            queue.ext = QueueExt(queue.topic, queue.queue_id, self._files)
        return queue.ext

    @property
    def exist(self) -> bool:
        """Whether any queue has extension files."""
        return os.path.isdir(self._files.directory)

    def check(self, queue: ConsumeQueue) -> None:
        """Raise UnsupportedLayoutError for files that cannot be the queue's."""
        if self._has_files(queue):
            self.of(queue)

    def resolve(self, queue: ConsumeQueue, address: int) -> int:
        """Return the tags code of an address, or the address itself when its unit is missing."""
        unit = self.of(queue).unit(address)
        return address if unit is None else unit.tags_code

    def append(self, queue: ConsumeQueue, tags_code: int, store_timestamp_ms: int) -> int:
        """Add a unit for the next record of the queue; return its address."""
        ext = self.of(queue)
        if ext.end < 0:
            self._find_end(queue, ext)
        return ext.append(ExtUnit(tags_code, store_timestamp_ms))

    def _find_end(self, queue: ConsumeQueue, ext: QueueExt) -> None:
        """Find the end behind the last queue unit's extension unit. What lies there is left over
        from a crash or belongs to units that were cut (docs/formats/store-format.md, section 3.6):
        it is removed. If the last queue units have no addresses, older ones may still need their
        units: all stay."""
        last = _last_address(queue)
        if last is None and queue.max_offset == queue.files_begin // UNIT_BYTES:
            ext.end = 0
        else:
            ext.find_end(last)
        ext.truncate()

    def write_out(self, queues: Iterable[ConsumeQueue]) -> None:
        """Write what was appended for `queues`, before the units that point there. Raises OSError;
        the next units then begin at the same positions again."""
        try:
            for queue in queues:
                for path, size in self.of(queue).write_out():
                    with self._lock:
                        self._dirty[path] = self._dirty.get(path, 0) + size
        except OSError:
            for queue in queues:
                queue.ext = None
            raise

    def take_dirty(self, bytes_min: int) -> list[str]:
        """See `QueueTable.take_dirty`."""
        with self._lock:
            paths = [path for path, size in self._dirty.items() if size >= bytes_min]
            for path in paths:
                del self._dirty[path]
        return paths

    def take_folders(self) -> set[str]:
        """See `QueueFiles.take_folders`."""
        return self._files.take_folders()

    def truncate(self, queue: ConsumeQueue) -> None:
        """Drop the extension units of queue units that were cut."""
        queue.ext = None
        if self._has_files(queue):
            self._find_end(queue, self.of(queue))

    def _has_files(self, queue: ConsumeQueue) -> bool:
        return os.path.isdir(os.path.join(self._files.directory, queue.topic, str(queue.queue_id)))

    def trim(self, queue: ConsumeQueue) -> int:
        """Delete the files that end before the extension unit of the queue's first unit; return how
        many."""
        if queue.min_offset == queue.max_offset:
            return 0
        address = queue.unit(queue.min_offset)[2]
        return self.of(queue).trim(address) if is_address(address) else 0

    def close(self) -> None:
        self._files.close()


def _last_address(queue: ConsumeQueue) -> int | None:
    """Return the address in the last unit that has one, among the last few, even if its extension
    unit is missing."""
    first = queue.files_begin // UNIT_BYTES
    first = max(queue.max_offset - _ADDRESS_UNITS, first)
    units = b""
    while first < queue.max_offset and (part := queue.read(first, _ADDRESS_UNITS)):
        units += part
        first += len(part) // UNIT_BYTES
    codes = [code for _, _, code in UNIT.iter_unpack(units) if is_address(code)]
    return codes[-1] if codes else None
