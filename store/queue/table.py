"""All consume queues of a store: appending units, writing them out, trimming.

Dispatched units are visible at once and wait in memory (`ConsumeQueue.tail`); `write_out` writes
them into the files, every second from the flush thread and whenever enough wait. A killed process
loses the waiting units, and the next start rebuilds them from the log. Tails belong to the
dispatching thread; the flush thread only copies them, under the lock, and reports its progress.

A light queue (`format/lmq_queues.py`) that is not used any more is removed with its files, and
restarts at 0 when it is used again. A later reader of the log meets the records of both uses: the
second one starts with a record whose offset the queue has passed, behind all of its records. The
queue then restarts there. Files are removed from the first one on, so that a crash leaves a queue
that can be loaded.

Topics with a folder in `batchconsumequeue` have queues of another form (format/batch_queue.py).
They are left unchanged: nothing is read or written for them here, and their messages are refused.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias

from ..config.store_config import StoreConfig
from ..format.disk import Disk, descriptor_share
from ..format.queue_files import QueueFiles
from ..format.record_layout import UNIT
from ..format.results import Arrival
from ..format.topic_names import check_topic, is_lmq
from .consume_queue import ConsumeQueue, pack_units
from .ext_table import ExtTable
from .numbering import PassedNumbers, QueueGapError, note_gap
from .unit_files import UnitFiles

#: Maximum number of units waiting in memory, 20 bytes each.
WAITING_UNITS_MAX: Final = 16_384
#: Limits of one `trim` call, about 10 ms of the event loop: queue files deleted, queues whose files
#: had to be read, queues checked in memory.
TRIM_FILES_MAX: Final = 32
TRIM_READS_MAX: Final = 256
TRIM_LOOKS_MAX: Final = 8192

#: The number of the first unit, and encoded units.
NewUnits: TypeAlias = tuple[int, bytes]


def packed(units: Mapping[ConsumeQueue, list[int]]) -> dict[ConsumeQueue, NewUnits]:
    """Encode the units of each queue: [number of the first one, physical offset, size, tags code,
    physical offset, ...]."""
    return {queue: (flat[0], pack_units(flat[1:])) for queue, flat in units.items()}


class QueueTable:
    """Queues by (topic, queue id). One thread reads and writes; `flush` may run on another."""

    def __init__(
        self,
        directory: str,
        file_bytes: int,
        open_files_max: int,
        disk: Disk,
        *,
        ext_file_bytes: int = 48 << 20,
        write_ext: bool = False,
    ) -> None:
        self.directory = directory
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.changes = 0  #: queues that were added or removed
        #: Number of light queues.
        self.lmq_count = 0
        #: The appender took its next offsets from the log up to here, beyond what is dispatched.
        self.assigned_end = 0
        #: Raise QueueGapError for a record that does not follow its queue's last one.
        self.strict = False
        #: Units get an extension unit, so they are written from arrivals (`write`).
        self.write_ext = write_ext
        #: Topics whose queues have the batch form and are left unchanged.
        self.batch_topics: frozenset[str] = frozenset()
        #: The log start up to which all queues are trimmed.
        self.trimmed_to = 0
        self._files = QueueFiles(disk, file_bytes, open_files_max, directory)
        root = os.path.dirname(directory)
        self.exts = ExtTable(
            os.path.join(root, "consumequeue_ext"), ext_file_bytes, open_files_max, disk
        )
        self.files = UnitFiles(directory, disk, self._files, self.exts)
        self._lock = threading.Lock()  # guards the three below, and growing tails
        self._waiting: set[ConsumeQueue] = set()  # queues with units that are not written out
        self._waiting_units = 0
        self._trim: list[ConsumeQueue] = []  # written out, but still in their tails
        self._passed = PassedNumbers()
        self._trim_target = 0  # the log start that `_trim_rest` is for
        self._trim_rest: list[ConsumeQueue] = []  # queues that are not trimmed yet

    @classmethod
    def of(cls, config: StoreConfig, disk: Disk) -> Self:
        """Create the table of this configuration."""
        return cls(
            str(config.consume_queue_directory),
            config.consume_queue_file_bytes,
            min(config.open_queue_files_max, descriptor_share()),
            disk,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            write_ext=config.enable_consume_queue_ext,
        )

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created (in memory only) if it is new. Raises ValueError for an illegal
        name."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            check_topic(topic)
            if queue_id < 0:
                raise ValueError(f"{queue_id} is not a queue id.")
            if topic in self.batch_topics:
                raise ValueError(
                    f"The queues of {topic!r} have the batch form, which is read only."
                )
            queue = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, self._files)
            self.changes += 1
            self.lmq_count += is_lmq(topic)
        return queue

    # -- writing ------------------------------------------------------------------------------

    def write_units(self, units: Mapping[ConsumeQueue, NewUnits]) -> None:
        """Make units visible. Raises OSError."""
        with self._lock:
            for queue, (number, data) in units.items():
                assert number == queue.max_offset, (queue.topic, number, queue.max_offset)
                queue.put(data)
                self._waiting_units += len(data) // UNIT.size
            self._waiting |= units.keys()
            while self._trim:
                self._trim.pop().trim()
        if self._waiting_units > WAITING_UNITS_MAX and self.files.lock.acquire(blocking=False):
            try:  # otherwise the flush thread is writing
                self._write_out()
            finally:
                self.files.lock.release()

    def continue_with(
        self, units: Iterable[tuple[str, int, int, bytes]]
    ) -> dict[ConsumeQueue, NewUnits] | None:
        """Make units of several queues (topic, queue id, number of the first one, encoded units)
        visible and return them. If some of them do not follow the last one of their queue, or the
        queue is not an ordinary one, they need `write`: returns None, with no unit written. Raises
        as `write` does. Not for queues with extension units."""
        new_units: dict[ConsumeQueue, NewUnits] = {}
        for topic, queue_id, number, data in units:
            if topic in self.batch_topics or is_lmq(topic):
                return None
            queue = self.queue(topic, queue_id)
            if number != queue.max_offset:
                return None
            new_units[queue] = number, data
        for queue, (number, data) in new_units.items():
            queue.next_offset = max(queue.next_offset, number + len(data) // UNIT.size)
        self.write_units(new_units)
        return new_units

    def write(self, arrivals: Sequence[Arrival]) -> None:
        """Make arrivals visible; units that a queue already holds are skipped. Raises OSError or,
        for an illegal name, ValueError."""
        units: dict[ConsumeQueue, list[int]] = {}
        for arrival in arrivals:
            if arrival.topic in self.batch_topics:
                continue
            queue = self.queue(arrival.topic, arrival.queue_id)
            flat = units.get(queue, [])
            number = flat[0] + len(flat) // 3 if flat else queue.max_offset
            if arrival.queue_offset < number:
                if not is_lmq(arrival.topic):
                    self._passed.note(queue, arrival.queue_offset, arrival.physical_offset)
                    continue
                self._write_units(units)
                units = {}
                if not self.restart(queue, arrival.queue_offset, arrival.physical_offset):
                    continue
                number = queue.max_offset
            if arrival.queue_offset > number:
                if self.strict and not is_lmq(arrival.topic):
                    raise QueueGapError(f"{arrival.topic}/{arrival.queue_id} ends at {number}.")
                self._write_units(units)
                units = {}
                note_gap(queue, arrival.queue_offset, arrival.physical_offset)
                queue.skip_to(arrival.queue_offset)
            flat = units.setdefault(queue, [arrival.queue_offset])
            code = arrival.tags_code
            if self.write_ext:
                code = self.exts.append(queue, code, arrival.store_timestamp_ms)
            flat += (arrival.physical_offset, arrival.size, code)
            queue.next_offset = max(queue.next_offset, arrival.queue_offset + 1)
        self._write_units(units)

    def _write_units(self, units: Mapping[ConsumeQueue, list[int]]) -> None:
        if self.write_ext:
            self.exts.write_out(units)
        self.write_units(packed(units))

    def write_columns(
        self,
        topic: str,
        queue_id: int,
        first_number: int,
        *,
        offsets: Any,
        sizes: Any,
        codes: Any,
        store_timestamps: Any,
    ) -> None:
        """Write consecutive records of one queue, as NumPy arrays, straight into the files. Raises
        as `write` does."""
        import numpy

        from ..scan.dtypes import QUEUE_UNIT

        if topic in self.batch_topics:
            return
        queue = self.queue(topic, queue_id)
        light = is_lmq(topic)
        if light and first_number < queue.max_offset:
            self.restart(queue, first_number, int(offsets[0]))
        held = max(queue.max_offset - first_number, 0)
        if held and not light:
            self._passed.note(queue, first_number, int(offsets[0]))
        count = len(offsets) - held
        if count <= 0:
            return
        if queue.max_offset < first_number:
            if self.strict and not light:
                raise QueueGapError(f"{topic}/{queue_id} ends at {queue.max_offset}.")
            note_gap(queue, first_number, int(offsets[0]))
            with self._lock:
                queue.skip_to(first_number)
                self._waiting.add(queue)
        if queue.tail:
            self.write_out()
            queue.trim()
        codes = codes[held:]
        if self.write_ext:
            pairs = zip(codes.tolist(), store_timestamps[held:].tolist(), strict=True)
            codes = [self.exts.append(queue, code, time_ms) for code, time_ms in pairs]
            self.exts.write_out((queue,))
        units = numpy.empty(count, QUEUE_UNIT)
        units["offset"] = offsets[held:]
        units["size"] = sizes[held:]
        units["code"] = codes
        with self.files.lock:
            queue.extend(units.tobytes(), self.files.write_kept)

    def overwrite(
        self, queue: ConsumeQueue, first: int, units: Sequence[tuple[int, int, int]]
    ) -> None:
        """Replace units of a queue, from number `first` on. Raises OSError."""
        with self.files.lock, self._lock:
            queue.overwrite(first, units, self.files.write_kept)

    def write_out(self) -> None:
        """Write all waiting units into their files. Any thread. Raises OSError."""
        with self.files.lock:
            self._write_out()

    def _write_out(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, set()
            units, self._waiting_units = self._waiting_units, 0
            work = [(queue, queue.max_offset, queue.waiting()) for queue in waiting]
        try:
            for queue, end, parts in work:
                for path, position, data in parts:
                    self.files.write_part(path, position, data)
                queue.written_end = end
        except BaseException:
            with self._lock:  # the next call tries all of it again
                self._waiting |= waiting
                self._waiting_units += units
            raise
        with self._lock:
            self._trim += waiting

    def flush(self, pages_min: int) -> None:
        """Write all waiting units into their files, and flush these. Raises OSError."""
        self.write_out()
        self.files.flush_written(pages_min)

    # -- loading and recovery -----------------------------------------------------------------

    def truncate(self, physical_offset: int, log_start: int) -> None:
        """Drop all units of records at `physical_offset` and behind, and clear their bytes."""
        for queue in self.queues.values():
            self.truncate_queue(queue, physical_offset)
            queue.correct_min_offset(log_start)

    def truncate_queue(self, queue: ConsumeQueue, physical_offset: int) -> None:
        """Truncate one queue and its extension units."""
        queue.truncate(physical_offset)
        self.exts.truncate(queue)

    def reach(self, topic: str, queue_id: int, number: int) -> None:
        """Let a queue go on at `number`: the records before are deleted, and their units lost."""
        queue = self.queue(topic, queue_id)
        with self._lock:
            queue.skip_to(number)
            queue.min_offset = number
            queue.next_offset = max(queue.next_offset, number)
            self._waiting.add(queue)

    def remove_unfinished(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._files.remove(path)

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, queue id and end of every queue that is not empty."""
        for (topic, queue_id), queue in list(self.queues.items()):
            if queue.max_offset:
                yield topic, queue_id, queue.max_offset

    # -- retention ----------------------------------------------------------------------------

    def trim(self, log_start: int) -> int:
        """Delete queue and extension files whose records retention has deleted; return how many.
        Does a bounded part of the work: call again until `trimmed_to` is `log_start`. Raises
        OSError. (docs/formats/store-format.md, section 10.3)"""
        if log_start != self._trim_target:
            self._trim_target = log_start
            self._trim_rest = list(self.queues.values())
        rest = self._trim_rest
        looks = reads = removed = 0
        while rest and looks < TRIM_LOOKS_MAX and reads < TRIM_READS_MAX:
            queue = rest[-1]
            looks += 1
            if queue.correct_min_offset(log_start) or queue.has_unused_file:
                reads += 1
                removed += queue.drop_files(log_start, TRIM_FILES_MAX - removed)
                removed += self.exts.trim(queue)
                if removed >= TRIM_FILES_MAX:
                    break  # the queue may have more
            rest.pop()
        if not rest:
            self.trimmed_to = log_start
        return removed

    # -- removal ------------------------------------------------------------------------------

    def lmqs(self) -> list[str]:
        """Return the names of the light queues (LMQ); a record is in queue 0 of those it names."""
        return [topic for topic, _ in self.queues if is_lmq(topic)]

    def hide_below(self, topic: str, queue_id: int, offset: int) -> None:
        """Hide the units below `offset` from readers, as if retention had deleted them; until the
        next start."""
        queue = self.queues.get((topic, queue_id))
        if queue is not None:
            queue.min_offset = max(queue.min_offset, min(offset, queue.max_offset))

    def discard(self, queue: ConsumeQueue) -> None:
        """Remove a queue and its files. Raises OSError."""
        self.empty(queue)
        del self.queues[queue.topic, queue.queue_id]
        self.changes += 1
        if queue in self._trim_rest:
            self._trim_rest.remove(queue)
        self._passed.forget(queue)
        for folder in (queue.directory, os.path.dirname(queue.directory)):
            with suppress(OSError):  # never created, or it holds a foreign file: it may stay
                os.rmdir(folder)

    def restart(self, queue: ConsumeQueue, number: int, physical_offset: int) -> bool:
        """Restart a light queue at a record whose offset it has passed: if the record lies behind
        all records of the queue, the queue was removed before the record was written. Raises
        OSError."""
        if physical_offset < queue.known_end():
            return False  # the record has its unit already
        assigned = queue.next_offset
        self.empty(queue)
        if physical_offset < self.assigned_end:
            queue.next_offset = assigned
        if number:
            queue.skip_to(number)
        return True

    def empty(self, queue: ConsumeQueue) -> None:
        """Remove all units, on disk too."""
        with self.files.lock:
            with self._lock:
                if queue in self._waiting:
                    self._waiting.remove(queue)
                    self._waiting_units -= queue.max_offset - max(
                        queue.tail_first, queue.written_end
                    )
                self._trim = [kept for kept in self._trim if kept is not queue]
            for path in queue.clear():
                self.files.forget(path)
        self.exts.truncate(queue)

    def close(self) -> None:
        self.files.close()
