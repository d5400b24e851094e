"""The reading half of the store's face: questions about the log and the queues. No state of its own.

`MessageStore` sets the parts and adds life and writing. Records are copied out of the map, so what a
caller holds never depends on a segment. Statuses and next offsets are RocketMQ's (store format,
section 9).
"""

from collections.abc import Iterable

from .append import Appender
from .format.results import ColdUnit, GetResult
from .log.commit_log import CommitLog
from .queue.places import offset_at, place_of
from .queue.table import QueueTable
from .reading import QueueReader
from .stats import Meter


class ReadApi:
    """What can be asked of an opened store."""

    meter: Meter
    _log: CommitLog
    _queues: QueueTable
    _appender: Appender
    _reader: QueueReader

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Raw bytes from `offset`: whole records where possible, never beyond `log_end`, never
        across a segment; b"" at `log_end`. Raises OffsetOutOfRangeError."""
        return self._log.read_raw(offset, max_bytes)

    def log_crc(self, start: int, end: int) -> int:
        """CRC-32 of the log bytes [start, end). Raises OffsetOutOfRangeError."""
        return self._log.crc(start, end)

    def record_at(self, physical_offset: int) -> bytes:
        """The whole record that begins there. Raises OffsetOutOfRangeError, RecordFormatError."""
        return self._log.record_at(physical_offset)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Up to `max_count` records from queue offset `offset` on, filtered by tags code.

        The first record comes even if it is larger than `max_bytes`. Without `max_bytes` RocketMQ's
        limits hold (`maxTransfer...`), and fewer records may come than asked for. Every record's
        place is checked; one that is not there is passed over (reading.py has all statuses). Raises
        OSError when the queue's file cannot be read.
        """
        result = self._reader.get(
            topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes
        )
        self.meter.get(len(result.records), result.size)
        return result

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is further behind the log's end than `accessMessageInMemoryMaxRatio` of
        the machine's memory. Raises OSError when the queue's file cannot be read."""
        return self._reader.is_cold(topic, queue_id, offset)

    def is_cold_place(self, physical_offset: int) -> bool:
        """The same for a place in the log."""
        return self._reader.is_cold_place(physical_offset)

    def cold_units(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> tuple[list[ColdUnit], int] | None:
        """The units of what `get` would have to read from the disk, and the offset behind the last that was looked
        at; None: nothing at `offset` has to come from there. Costs a comparison while the log fits into memory.
        Raises OSError when the queue's file cannot be read."""
        return self._reader.cold_units(
            topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes
        )

    def place_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The physical offset of a message that readers see. Raises OSError when the queue's file cannot be read."""
        return self._reader.place_of(topic, queue_id, offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """End of what readers see."""
        return self._reader.max_offset(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next append to this queue gets."""
        self._appender.assign_from_log()
        queue = self._queues.queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def next_offsets(self, topic: str, queue_ids: Iterable[int]) -> dict[int, int]:
        """`next_offset` of those queues that there are."""
        self._appender.assign_from_log()
        queues = self._queues.queues
        found = {queue_id: queues.get((topic, queue_id)) for queue_id in queue_ids}
        return {queue_id: queue.next_offset for queue_id, queue in found.items() if queue}

    def hide_below(self, topic: str, queue_id: int, offset: int) -> None:
        """Nobody reads what lies below any more, as if retention had taken it; until the next start."""
        queue = self._queues.queues.get((topic, queue_id))
        if queue is not None:
            queue.min_offset = max(queue.min_offset, min(offset, queue.max_offset))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """First offset stored at or after the time; with `upper` the last at or before it."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper)

    def place(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """Physical offset and size of a message's record; None where there is no such message."""
        queue = self._queues.queues.get((topic, queue_id))
        return place_of(queue, offset) if queue is not None else None

    def offset_by_place(self, topic: str, queue_id: int, place: int) -> int:
        """First offset whose record lies at this place of the log or above."""
        queue = self._queues.queues.get((topic, queue_id))
        return offset_at(queue, place) if queue is not None else 0

    def border_at(self, offset: int) -> int:
        """Start of the first record at or above `offset`, which may lie inside one; the segment's end
        where none follows in it. Raises OffsetOutOfRangeError."""
        return self._log.border_at(offset)

    def queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue that holds or held a record."""
        return [key for key, queue in self._queues.queues.items() if queue.next_offset]
