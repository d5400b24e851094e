"""The reading half of the store's face: questions about the log and the queues. No state of its own.

`MessageStore` sets the parts and adds life and writing. Records are copied out of the map, so what a
caller holds never depends on a segment. Statuses and next offsets are RocketMQ's (store format,
section 9).
"""

from collections.abc import Iterable

from .append import Appender
from .commit_log import CommitLog
from .queue_table import QueueTable
from .reading import QueueReader
from .results import GetResult
from .stats import Meter


class ReadFace:
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

    def queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue that holds or held a record."""
        return [key for key, queue in self._queues.queues.items() if queue.next_offset]
