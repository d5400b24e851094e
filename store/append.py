"""Append: validates messages, assigns queue offsets, writes records, adds dispatch hints.

All records of a batch get one store timestamp, the wall time: when the clock is set back, store
times go back with it, as in Apache's broker, and only offsets order records. The records that one
segment takes from a batch are written with one call (a run); positions and hints move after the
write. A refused message changes nothing and does not stop the rest of its batch. Exception: a
record that fits no segment ends the last segment, as in Apache's broker
(docs/formats/store-format.md, section 2.6), unless a hook writes records at the start of every
segment.

`append_batch` is the old-style batch of a remoting client (section 2.10): all or nothing, adjacent
in one queue and one segment.
"""

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from .dispatch import Dispatcher, Hint
from .events import NO_EVENTS, StoreEvents
from .format.errors import NoBufferError, StoreError
from .format.lmq_queues import MULTI_DISPATCH
from .format.properties import SCHEDULE_TOPIC, is_delayed
from .format.record import (
    PROPERTIES_BYTES_MAX,
    Message,
    encode,
    encode_sealed,
    record_size,
    tags_code,
    with_crc_room,
)
from .format.record_layout import (
    BLANK_BYTES,
    HOST_V4_BYTES,
    HOSTS_V6,
    TRANSACTION_MASK,
    UNIT,
    UNQUEUED,
)
from .format.results import AppendResult, Arrival, PutStatus
from .format.topic_names import is_lmq
from .log.commit_log import CommitLog
from .queue.consume_queue import ConsumeQueue
from .queue.lmq_numbers import LmqNumbers
from .queue.table import QueueTable

logger = logging.getLogger(__name__)
_OK: Final = PutStatus.PUT_OK
_UNCOMMON: Final = TRANSACTION_MASK | HOSTS_V6 | MULTI_DISPATCH
#: Bytes of records that are joined in memory for one write: what fits into the CPU caches.
_JOINED_BYTES_MIN: Final = 96 << 10
#: Wire size of a batch member without body and properties: five numbers and two lengths.
_MEMBER_BYTES: Final = 22
#: Records parsed per step while queue offsets are taken from the log.
_ASSIGN_STEP: Final = 10_000


def refused(status: PutStatus) -> AppendResult:
    return AppendResult(status, -1, 0, -1, 0)


def unflushed(result: AppendResult) -> AppendResult:
    """Return the result with the status "stored, not known to be flushed"."""
    return AppendResult(
        PutStatus.FLUSH_DISK_TIMEOUT,
        result.physical_offset,
        result.size,
        result.queue_offset,
        result.store_timestamp_ms,
    )


class Encoded(Protocol):
    """Encoded records, one behind the other, with what follows from them."""

    @property
    def data(self) -> bytes: ...
    @property
    def records(self) -> int:
        """Number of records; 0 if nothing is to be appended."""

    @property
    def last(self) -> int:
        """Log offset of the last record."""

    @property
    def units(self) -> Sequence[tuple[str, int, int, bytes]]:
        """New units of known queues: topic, queue id, number of the first one, encoded units."""


#: Encodes records, given the log offset of the first one, the log offset that none may cross, and
#: their store time.
Encoder: TypeAlias = Callable[[int, int, int], Encoded]


class _Run:
    """Records that are written together, all behind the same segment's end."""

    def __init__(self, log: CommitLog, limit: int, now_ms: int) -> None:
        self.arrivals: list[Arrival] = []
        self.queues: set[ConsumeQueue] = set()
        self._log = log
        self._end = log.end
        self._limit = limit
        self._now_ms = now_ms
        self._parts: list[bytes] = []
        self._joined = 0

    def add(self, message: Message, queue: ConsumeQueue) -> bool:
        """Add a record; return False if it does not fit the segment or cannot be encoded."""
        end, number = self._end, queue.next_offset
        size = record_size(message)
        if end + size > self._limit:
            return False
        try:
            self._parts.append(encode(message, number, end, self._now_ms))
        except (ValueError, struct.error):
            return False
        code = tags_code(message.topic, message.properties, self._now_ms)
        self.arrivals.append(
            Arrival(_OK, end, size, number, self._now_ms, queue.topic, queue.queue_id, code)
        )
        self.queues.add(queue)
        queue.next_offset = number + 1
        self._end += size
        self._joined += size
        if self._joined >= _JOINED_BYTES_MIN:
            self.finish()
        return True

    def finish(self) -> None:
        """Write the records that wait. Raises OSError."""
        if self._parts:
            self._log.write(b"".join(self._parts))
            self._parts.clear()
            self._joined = 0


class Appender:
    """The only writer of messages (raw bytes of a leader are written by `CommitLog.append_raw`)."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        dispatcher: Dispatcher,
        wall_ms: Callable[[], int],
        body_bytes_max: int,
        *,
        seal: bool = False,
        lmq_max: int = 0,
        events: StoreEvents = NO_EVENTS,
    ) -> None:
        self._events = events
        #: Number of refused messages.
        self.refusals = 0
        #: Why the last segment could not be created, or "".
        self.allocation_failure = ""
        #: Whether the cause was a missing buffer of the transient pool.
        self.out_of_buffers = False
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._wall_ms = wall_ms
        self._body_bytes_max = body_bytes_max
        self._light = LmqNumbers(queues, lmq_max, body_bytes_max)
        self._seal = seal  # end every record with its checksum (enabledAppendPropCRC)
        self._encode = encode_sealed if seal else encode
        self._assigned_end = 0  # the queue offsets of all records before it are known
        self._headed = -1  # start of the segment that may take its first record
        self._in_hook = False

    def append_many(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append in order; one result per message. Raises OSError when the log cannot be
        written."""
        now_ms = self._begin()
        begin = self._log.end
        if self._seal:
            results = [self._append_one(message, now_ms) for message in messages]
        else:
            results = []
            rest = self._append_run(messages, now_ms, results)
            while rest:
                results.append(self._append_one(rest[0], now_ms))
                rest = self._append_run(rest[1:], now_ms, results)
        self._finish(begin, now_ms)
        return results

    def append_batch(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append all with consecutive queue offsets in one segment, or none, with one status.
        Raises OSError when the log cannot be written."""
        if not messages:
            return []
        now_ms = self._begin()
        begin = self._log.end
        if self._seal:
            messages = [with_crc_room(message) for message in messages]
        status = self._batch_fault(messages)
        results: list[AppendResult] = []
        if status is _OK:
            status = self._roll_if_needed(sum(record_size(message) for message in messages), now_ms)
        if status is _OK:
            results += self._write_batch(messages, now_ms)
        self._finish(begin, now_ms)
        if not results:
            self.refusals += len(messages)
        return results or [refused(status) for _ in messages]

    def _begin(self) -> int:
        """Prepare an append; return its store time."""
        log = self._log
        log.drop_part()
        if self._assigned_end != log.end:
            self.assign_from_log()
        self._dispatcher.begin_hints()
        return self._wall_ms()

    def _finish(self, begin: int, now_ms: int) -> None:
        log = self._log
        if log.end != begin:
            self._assigned_end = log.end
            log.note_written(now_ms)

    def append_encoded(self, encode: Encoder) -> Encoded:
        """Append what `encode` returns with one write. Raises OSError when the log cannot be
        written, with nothing changed."""
        now_ms = self._begin()
        log, queues = self._log, self._queues.queues
        begin = log.end
        encoded = encode(begin, self._run_limit(), now_ms)
        count = encoded.records
        if count:
            log.write(encoded.data)
            units = {
                queues[topic, queue_id]: (first, data)
                for topic, queue_id, first, data in encoded.units
            }
            for queue, (first, data) in units.items():
                queue.next_offset = first + len(data) // UNIT.size
            self._dispatcher.add_hint(Hint(begin, log.end, encoded.last, now_ms, units, count))
        self._finish(begin, now_ms)
        return encoded

    def _append_run(
        self, messages: Sequence[Message], now_ms: int, results: list[AppendResult]
    ) -> Sequence[Message]:
        """Append the simple messages at the front with few writes; return those from the first
        other one on (another segment, an unknown queue, IPv6, a transaction, a refusal)."""
        run = _Run(self._log, self._run_limit(), now_ms)
        for message in messages:
            queue = self._queues.queues.get((message.topic, message.queue_id))
            if queue is None or self._is_special(message) or not run.add(message, queue):
                break
        run.finish()
        if run.arrivals:
            hint = Hint.of(run.arrivals, run.queues)
            self._dispatcher.add_hint(hint)
            results += run.arrivals
        return messages[len(run.arrivals) :]

    def _is_special(self, message: Message) -> bool:
        """Return whether the message needs the general path."""
        return (
            message.sys_flag & _UNCOMMON != 0
            or message.topic == SCHEDULE_TOPIC
            or len(message.born_host) != HOST_V4_BYTES
            or len(message.store_host) != HOST_V4_BYTES
            or self._too_large(message)
        )

    def _too_large(self, message: Message) -> bool:
        return (
            len(message.body) > self._body_bytes_max
            or len(message.properties) > PROPERTIES_BYTES_MAX
        )

    def _run_limit(self) -> int:
        """Return where a run must end: before the segment's blank."""
        log = self._log
        segment = log.tail
        if segment is None or (log.end == segment.start and segment.start != self._headed):
            return 0
        return segment.end - BLANK_BYTES

    def _fault(self, message: Message) -> PutStatus:
        """Return the status that refuses the message, independent of its position; PUT_OK if it is
        valid."""
        if len(message.body) > self._body_bytes_max:
            return PutStatus.MESSAGE_ILLEGAL
        if len(message.properties) > PROPERTIES_BYTES_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        try:
            self._queues.queue(message.topic, message.queue_id)
            encode(message, 0, 0, 0)  # raises for an invalid message before a segment is rolled
        except (ValueError, struct.error):
            return PutStatus.MESSAGE_ILLEGAL
        return _OK

    def _batch_fault(self, messages: Sequence[Message]) -> PutStatus:
        first = messages[0]
        size = 0
        for message in messages:
            size += _MEMBER_BYTES + len(message.body) + len(message.properties)
            if (
                (message.topic, message.queue_id) != (first.topic, first.queue_id)
                or message.sys_flag & (TRANSACTION_MASK | MULTI_DISPATCH)
                or is_delayed(message.properties)
            ):
                return PutStatus.MESSAGE_ILLEGAL
            status = self._fault(message)
            if status is not _OK:
                return status
        return PutStatus.MESSAGE_ILLEGAL if size > self._body_bytes_max else _OK

    def _write_batch(self, messages: Sequence[Message], now_ms: int) -> list[Arrival]:
        log = self._log
        queue = self._queues.queue(messages[0].topic, messages[0].queue_id)
        begin = end = log.end
        parts: list[bytes] = []
        arrivals: list[Arrival] = []
        for number, message in enumerate(messages, queue.next_offset):
            data = self._encode(message, number, end, now_ms)
            code = tags_code(message.topic, message.properties, now_ms)
            arrivals.append(
                Arrival(_OK, end, len(data), number, now_ms, message.topic, message.queue_id, code)
            )
            parts.append(data)
            end += len(data)
        log.write(b"".join(parts))
        assert log.end == end > begin
        queue.next_offset += len(messages)
        self._dispatcher.add_hint(Hint.of(arrivals, (queue,)))
        return arrivals

    def _append_one(self, message: Message, now_ms: int) -> AppendResult:
        """Append any message: the general path."""
        status = _OK
        lights: list[ConsumeQueue] = []
        if message.sys_flag & MULTI_DISPATCH:
            message, status, lights = self._light.of(message)
        if self._seal:
            message = with_crc_room(message)
        if status is _OK:
            status = self._fault(message)
        if status is not _OK:
            self.refusals += 1
            return refused(status)
        log = self._log
        size = record_size(message)
        queue = self._queues.queue(message.topic, message.queue_id)
        status = self._roll_if_needed(size, now_ms)
        if status is not _OK:
            self.refusals += 1
            return refused(status)
        begin = log.end
        if message.sys_flag & TRANSACTION_MASK in UNQUEUED:
            log.write(self._encode(message, 0, begin, now_ms))
            return AppendResult(_OK, begin, size, 0, now_ms)
        number = queue.next_offset
        log.write(self._encode(message, number, begin, now_ms))
        queue.next_offset = number + 1
        code = tags_code(message.topic, message.properties, now_ms)
        arrival = Arrival(_OK, begin, size, number, now_ms, message.topic, message.queue_id, code)
        arrivals = [arrival]
        for light in lights:
            number = light.next_offset
            arrivals.append(Arrival(_OK, begin, size, number, now_ms, light.topic, 0, code))
            light.next_offset = number + 1
        self._dispatcher.add_hint(Hint.of(arrivals, (queue, *lights)))
        return arrival

    def _roll_if_needed(self, size: int, now_ms: int) -> PutStatus:
        """Roll to a new segment if `size` bytes do not fit; return the status."""
        log = self._log
        whole = log.segment_bytes - BLANK_BYTES
        if size > whole:
            if not self._events.heads_segments and self._roll_until_fits(whole, now_ms):
                log.mark_unfit()
            return PutStatus.END_OF_FILE
        return _OK if self._roll_until_fits(size, now_ms) else PutStatus.CREATE_MAPPED_FILE_FAILED

    def _roll_until_fits(self, size: int, now_ms: int) -> bool:
        """Roll until a record of `size` bytes fits; return false without a new segment."""
        try:
            self._turn_page(size)
            self._write_heads(now_ms)
            self._turn_page(size)
        except StoreError as error:
            if str(error) != self.allocation_failure:
                logger.error("segment.failed reason=%s", error)
            self.allocation_failure = str(error)
            self.out_of_buffers = isinstance(error, NoBufferError)
            return False
        self.allocation_failure = ""
        self.out_of_buffers = False
        self._headed = self._log.segments[-1].start
        return True

    def _turn_page(self, size: int) -> None:
        log = self._log
        begin = log.end
        if log.tail is None or begin == log.tail.end:
            log.add_segment(begin)
        elif begin - log.tail.start + size + BLANK_BYTES > log.tail.size:
            log.roll()
            self._dispatcher.skip_blank(begin)

    def _write_heads(self, now_ms: int) -> None:
        """Write the hook's records at the start of a segment. They may roll again; the hook is not
        called for its own records."""
        log = self._log
        segment = log.segments[-1]
        if log.end > segment.start or segment.start == self._headed:
            return
        self._headed = segment.start
        if self._events.heads_segments and not self._in_hook:
            self._in_hook = True
            try:
                for head in self._events.segment_heads(segment.start):
                    self._append_one(head, now_ms)
            finally:
                self._in_hook = False

    def assign_from_log(self) -> None:
        """Raise the next offset of every queue over the records that were appended raw."""
        log, dispatcher = self._log, self._dispatcher
        begin = max(self._assigned_end, dispatcher.offset, log.start)
        while begin < log.end:
            arrivals, end = dispatcher.parse(begin, log.end, _ASSIGN_STEP)
            for arrival in arrivals:
                if arrival.topic in self._queues.batch_topics:
                    continue
                queue = self._queues.queue(arrival.topic, arrival.queue_id)
                # For a light queue the latest record counts: the queue may have restarted.
                known = 0 if is_lmq(arrival.topic) else queue.next_offset
                queue.next_offset = max(known, arrival.queue_offset + 1)
            if end == begin:
                break
            begin = end
        self._assigned_end = self._queues.assigned_end = log.end
