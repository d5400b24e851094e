"""Queues that go, or begin anew: mostly light queues (`format/lmq_queues.py`).

A light queue that is not used any more is removed with its files, and begins at 0 if it is used again.
Whoever reads the log later meets both lives of it; in the order of the log the second one is a record
with a number that the queue is past, in a place behind all of its records. Then the queue begins anew
there. Files go from the first one on, so that a crash in between leaves a queue that can be loaded.
"""

import os
import threading
from contextlib import suppress

from ..format.queue_files import QueueFiles
from ..format.queue_unit import FILLER_SIZE
from ..format.topic_names import is_light
from .consume_queue import ConsumeQueue
from .ext_table import ExtTable


class QueueRemoval:
    """The part of `QueueTable` that removes; called from its thread."""

    queues: dict[tuple[str, int], ConsumeQueue]
    light_count: int
    assigned_end: int
    exts: ExtTable
    _files: QueueFiles
    _lock: threading.Lock
    _out_lock: threading.Lock
    _waiting: set[ConsumeQueue]
    _waiting_units: int
    _trim: list[ConsumeQueue]
    _trim_rest: list[ConsumeQueue]
    _dirty: dict[str, int]

    def light_queues(self) -> list[ConsumeQueue]:
        """All light queues."""
        return [queue for queue in self.queues.values() if is_light(queue.topic)]

    def remove(self, topic: str, queue_id: int) -> bool:
        """Remove a light queue and its files; not while it has records that are not dispatched.
        Raises OSError."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or not is_light(topic) or queue.next_offset > queue.max_offset:
            return False
        self._discard(queue)
        self.light_count -= 1
        return True

    def remove_expired(self, topic: str, queue_id: int, log_start: int) -> bool:
        """Remove an ordinary queue when retention took all of its records; it, too, begins at 0 if it
        is used again, and the log knows no other life of it. Raises OSError."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or is_light(topic) or queue.next_offset > queue.max_offset:
            return False
        if queue.max_offset:
            # Not `known_end`: that of a queue without readable units is unknown.
            offset, size, _ = queue.unit(queue.max_offset - 1)
            if size == FILLER_SIZE or offset + size > log_start:
                return False
        self._discard(queue)
        return True

    def _discard(self, queue: ConsumeQueue) -> None:
        self._empty(queue)
        del self.queues[queue.topic, queue.queue_id]
        if queue in self._trim_rest:
            self._trim_rest.remove(queue)
        for folder in (queue.directory, os.path.dirname(queue.directory)):
            with suppress(OSError):  # never made, or somebody put a file there: it may stay
                os.rmdir(folder)

    def begin_anew(self, queue: ConsumeQueue, number: int, physical_offset: int) -> bool:
        """A record has a number that the light queue is past: if it lies behind all records of the
        queue, the queue was removed before it came, and begins anew with it. Raises OSError."""
        if physical_offset < queue.known_end():
            return False  # the record has its unit already
        assigned = queue.next_offset
        self._empty(queue)
        if physical_offset < self.assigned_end:
            queue.next_offset = assigned
        if number:
            queue.leap(number)
        return True

    def _empty(self, queue: ConsumeQueue) -> None:
        """Nothing is left of the queue, on the disk either."""
        with self._out_lock:
            with self._lock:
                if queue in self._waiting:
                    self._waiting.remove(queue)
                    self._waiting_units -= queue.max_offset - max(
                        queue.tail_first, queue.written_end
                    )
                self._trim = [one for one in self._trim if one is not queue]
            for path in queue.clear():
                self._dirty.pop(path, None)
        self.exts.truncate(queue)
