"""Reading a queue: from queue offsets to copies of records.

Statuses and next offsets are RocketMQ's (store format, sections 9.1 and 9.5). Records are copied out
of the map, so what a caller holds never depends on a segment.
"""

from typing import Final

from .commit_log import CommitLog
from .config import CONSUME_QUEUE_UNIT_BYTES
from .consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from .errors import OffsetOutOfRangeError
from .queue_table import QueueTable
from .results import GetResult, GetStatus, StoredRecord

#: What one read returns at most unless the caller says otherwise: one largest message.
READ_BYTES_DEFAULT: Final = 4 << 20
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def tags_match(tags_code: int, wanted: frozenset[int]) -> bool:
    """Compare the low 32 bits; the address of an extension unit matches everything."""
    if _INT_MIN <= tags_code <= _INT_MAX:
        return tags_code in wanted
    if tags_code < _INT_MIN:
        return True
    low = tags_code & 0xFFFFFFFF
    return (low - (1 << 32) if low >> 31 else low) in wanted


class QueueReader:
    """Answers questions about queues; a queue that does not exist is an empty one."""

    def __init__(self, log: CommitLog, queues: QueueTable, filter_bytes_max: int) -> None:
        self._log = log
        self._queues = queues.queues
        self._filter_units_max = max(filter_bytes_max // CONSUME_QUEUE_UNIT_BYTES, 1)

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        *,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        self._collect(queue, result, count_max, bytes_max, tag_codes)
        return result

    def _collect(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        count_max: int,
        bytes_max: int,
        tag_codes: frozenset[int] | None,
    ) -> None:
        """Look at units from `result.next_offset` on until the batch is full."""
        end = result.next_offset + max(self._filter_units_max, count_max)
        step = count_max if tag_codes is None else self._filter_units_max
        while result.next_offset < min(end, result.max_offset):
            units = queue.read(result.next_offset, min(step, end - result.next_offset))
            for offset, size, tags_code in UNIT.iter_unpack(units):
                if size != FILLER_SIZE and (tag_codes is None or tags_match(tags_code, tag_codes)):
                    # A full batch is left here, at the next match: what lies before is passed over.
                    if result.records and (len(result.records) >= count_max or size > bytes_max):
                        return
                    data = self._read(offset, size, result)
                    if data:
                        bytes_max -= size
                        result.records.append(
                            StoredRecord(result.next_offset, offset, data, tags_code)
                        )
                result.next_offset += 1
            if tag_codes is None and len(result.records) >= count_max:
                return

    def _read(self, offset: int, size: int, result: GetResult) -> bytes:
        """The record, or b"" when retention has taken it."""
        if offset < self._log.start:
            if result.status is GetStatus.NO_MATCHED_MESSAGE:
                result.status = GetStatus.MESSAGE_WAS_REMOVING
            return b""
        result.status = GetStatus.FOUND
        return self._log.read(offset, size)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool) -> int:
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset <= queue.min_offset:
            return queue.max_offset if queue else 0
        return queue.offset_by_time(timestamp_ms, upper, self._store_timestamp)

    def _store_timestamp(self, physical_offset: int) -> int:
        """Store time of a record; -1, earlier than all, for one that is no longer there."""
        try:
            return self._log.store_timestamp(physical_offset)
        except OffsetOutOfRangeError:
            return -1
