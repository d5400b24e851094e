"""All consume queues of a store: loading, making units visible, writing them out.

What is dispatched is visible at once and waits in memory (`ConsumeQueue.tail`); `write_out` puts it
into the files, every second from the flush thread and whenever enough waits. A killed process loses
what waits, and the next start makes it again from the log. Tails belong to the one thread that
dispatches; the flush thread only copies them, under the lock, and reports how far it came.
"""

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from .consume_queue import ConsumeQueue
from .disk import Disk
from .layout import list_files
from .queue_files import QueueFiles
from .record import TOPIC_BYTES_MAX, TOPIC_BYTES_V1_MAX
from .results import Arrival

_PAGE_BYTES = 4096
_RETRY_PREFIX = "%RETRY%"
#: Units that wait in memory at most, about 100 bytes each; above it they are written out.
WAITING_UNITS_MAX: Final = 16_384


def check_topic(topic: str) -> None:
    """Raises ValueError for a topic that cannot be stored (store format, section 2.5).

    The topic names a directory, so it must not be able to leave its place.
    """
    size = len(topic.encode())
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        raise ValueError(f"{topic!r} cannot be the name of a topic.")
    if size > TOPIC_BYTES_MAX or (
        size > TOPIC_BYTES_V1_MAX and not topic.startswith(_RETRY_PREFIX)
    ):
        raise ValueError(f"The topic {topic[:40]!r}... has {size} bytes; the limit is 127.")


class QueueGapError(Exception):
    """A queue lacks units that stood before the ones that come now (only while strict)."""


class QueueTable:
    """Queues by (topic, queue id). One thread reads and writes; `take_dirty` may be another's."""

    def __init__(self, directory: str, file_bytes: int, open_files_max: int, disk: Disk) -> None:
        self.directory = directory
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        #: A record that does not follow its queue's last one is an error, not a gap to be filled.
        self.strict = False
        self._files = QueueFiles(disk, file_bytes, open_files_max)
        self._disk = disk
        self._lock = threading.Lock()  # the three below, and the growing of tails
        self._waiting: set[ConsumeQueue] = set()  # queues with units that are not written out
        self._waiting_units = 0
        self._trim: list[ConsumeQueue] = []  # written out, but still in their tails
        self._out_lock = threading.Lock()  # held while units are on their way to the files
        self._dirty: dict[str, int] = {}  # path -> bytes written since its last flush; out_lock

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made (in memory only) if it is new. Raises ValueError for an illegal name."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic)
            if queue_id < 0:
                raise ValueError(f"{queue_id} cannot be the number of a queue.")
            folder = os.path.join(self.directory, topic, str(queue_id))
            queue = self.queues[topic, queue_id] = ConsumeQueue(
                topic, queue_id, folder, self._files
            )
        return queue

    # -- writing ------------------------------------------------------------------------------

    def write_units(self, units: Mapping[ConsumeQueue, list[int]]) -> None:
        """Make ready units visible: for each queue [number of the first one, offset, size, code,
        offset, ...], which is used up. Raises OSError."""
        with self._lock:
            for queue, flat in units.items():
                number = flat.pop(0)
                assert number == queue.max_offset, (queue.topic, number, queue.max_offset)
                queue.put(flat)
                self._waiting_units += len(flat) // 3
            self._waiting |= units.keys()
            while self._trim:
                self._trim.pop().trim()
        if self._waiting_units > WAITING_UNITS_MAX and self._out_lock.acquire(blocking=False):
            try:  # else the flush thread is at it right now
                self._write_out()
            finally:
                self._out_lock.release()

    def write(self, arrivals: Sequence[Arrival]) -> None:
        """Make arrivals visible; what a queue already holds is skipped. Raises OSError or, for a
        name that cannot be a queue's, ValueError."""
        units: dict[ConsumeQueue, list[int]] = {}
        for arrival in arrivals:
            queue = self.queue(arrival.topic, arrival.queue_id)
            flat = units.get(queue, [])
            number = flat[0] + len(flat) // 3 if flat else queue.max_offset
            if arrival.queue_offset < number:
                continue
            if arrival.queue_offset > number:
                if self.strict:
                    raise QueueGapError(f"{arrival.topic}/{arrival.queue_id} ends at {number}.")
                self.write_units(units)
                units = {}
                queue.leap(arrival.queue_offset)
            flat = units.setdefault(queue, [arrival.queue_offset])
            flat += (arrival.physical_offset, arrival.size, arrival.tags_code)
            queue.next_offset = max(queue.next_offset, arrival.queue_offset + 1)
        self.write_units(units)

    def write_out(self) -> None:
        """Put all units that wait into their files. Any thread. Raises OSError."""
        with self._out_lock:
            self._write_out()

    def _write_out(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
            self._waiting_units = 0
            work = [(queue, queue.max_offset, queue.waiting()) for queue in waiting]
        for queue, end, parts in work:
            for path, position, data in parts:
                self._write_part(path, position, data)
            queue.written_end = end
        with self._lock:
            self._trim += waiting

    def _write_part(self, path: str, position: int, data: bytes) -> None:
        descriptor = self._disk.open(path, os.O_RDWR)
        try:
            written = self._disk.pwrite(descriptor, data, position)
        finally:
            self._disk.close(descriptor)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written", path)
        self._dirty[path] = self._dirty.get(path, 0) + written

    def take_dirty(self, pages_min: int) -> list[str]:
        """Paths of files with at least so many pages written since they were last taken."""
        with self._out_lock:
            limit = pages_min * _PAGE_BYTES
            paths = [path for path, size in self._dirty.items() if size >= limit]
            for path in paths:
                del self._dirty[path]
        return paths

    # -- loading and recovery -----------------------------------------------------------------

    def load(
        self, is_whole: Callable[[ConsumeQueue, int, int, int], bool], log_start: int
    ) -> list[str]:
        """Load all queues; returns paths of unfinished last files (layout.py). Changes nothing."""
        unfinished = []
        for topic in _folders(self.directory):
            for name in _folders(os.path.join(self.directory, topic)):
                if not (name.isascii() and name.isdecimal()):
                    continue
                queue = self.queue(topic, int(name))
                files = list_files(queue.directory, self._files.size, "mappedFileSizeConsumeQueue")
                if files.unfinished:
                    unfinished.append(files.unfinished)
                queue.load(list(files.starts), partial(is_whole, queue))
                queue.correct_min_offset(log_start)
        return unfinished

    def truncate(self, physical_offset: int, log_start: int) -> None:
        """Drop all units of records at `physical_offset` and behind, and clear their bytes."""
        for queue in self.queues.values():
            queue.truncate(physical_offset)
            queue.correct_min_offset(log_start)

    def remove_unfinished(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._files.remove(path)

    def close(self) -> None:
        self._files.close()


def _folders(directory: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except FileNotFoundError:
        return []
