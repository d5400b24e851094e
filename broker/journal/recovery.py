"""Journal recovery: reads pop state from the log, after a restart and on a follower. Derived data.

Checkpoints and acks are in the timer topic, among user timers, and due ones in the queues of the
revive topic. They are read in log order, from the consumer offsets of `CID_RMQ_SYS_REVIVE_GROUP`,
before which everything is settled: the offsets of the revive topic are Apache's, the one of the
timer topic is CometMQ's. Without the latter (Apache's broker wrote the directory) reading starts
early enough to include every open message, and the revive topic before Apache's offset is settled
(docs/formats/broker-semantics.md, sections 1.7 and 1.10).

Reading it again costs time, never a message. `step` reads a bounded number of records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct, field

from ...store.format.properties import property_value, whole_number
from ...store.format.record import Delivery as Stored
from ...store.format.record import decode_delivery
from ...store.format.results import GetResult, GetStatus
from ...store.timer.rules import OUT_MS, REAL_QUEUE, TIMER_QUEUE, TIMER_TOPIC
from .core import PopJournal
from .revive_codec import TAG_CODES, AckRecord, CheckpointRecord, decode

#: The longest invisible time is 12 hours; an hour is added for due messages not yet processed.
OPEN_MAX_MS = 13 * 3_600_000
_READ_RECORDS = 32
_READ_BYTES = 1 << 20
#: A read that finds nothing has scanned up to 800 units; it counts as this many records.
_LOOK_COST = 16
_OUT_MS = OUT_MS.encode()
_REAL_QUEUE = REAL_QUEUE.encode()


class Offsets(Protocol):
    """Queue offsets by time and by position in the log."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int: ...

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int) -> int: ...


class Log(Protocol):
    """The reading methods of the store."""

    @property
    def reader(self) -> Offsets: ...

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


class _Source(Struct):
    """One queue being read."""

    topic: str
    queue_id: int
    next_offset: int = 0
    #: Physical offset, queue offset and record of what was read but not processed yet.
    ahead: deque[tuple[int, int, Stored]] = field(default_factory=deque)

    @property
    def position(self) -> int:
        """The first queue offset that was not processed."""
        return self.ahead[0][1] if self.ahead else self.next_offset


class ReviveReader:
    """Feeds a `PopJournal` from a log, in pieces."""

    def __init__(
        self,
        log: Log,
        journal: PopJournal,
        revive_topic: str,
        committed: Callable[[str, int], int | None],
        is_left_over: Callable[[str, int], bool],
    ) -> None:
        """`committed` returns the consumer offset of the revive group for a topic and queue,
        `is_left_over` by group and log offset whether a record belongs to a deleted group."""
        self._log = log
        self._journal = journal
        self._topic = revive_topic
        self._committed = committed
        self._is_left_over = is_left_over
        self._timer = _Source(TIMER_TOPIC, TIMER_QUEUE)
        self._revive: dict[int, _Source] = {}
        #: Store time of the last record read: less than before where the clock was set back.
        self.newest_ms = 0
        self._begin_timer()

    @property
    def timer_offset(self) -> int:
        """The first unread queue offset of the timer topic."""
        return self._timer.position

    def revive_offsets(self) -> dict[int, int]:
        """The same for the revive topic, by queue."""
        return {queue_id: source.position for queue_id, source in self._revive.items()}

    def watch(self, queue_ids: Collection[int]) -> None:
        """Add queues of the revive topic."""
        for queue_id in queue_ids:
            if queue_id not in self._revive:
                source = self._revive[queue_id] = _Source(self._topic, queue_id)
                source.next_offset = self._begin_revive(queue_id)

    def behind(self) -> bool:
        """Return whether there is something to read."""
        return any(
            source.ahead or source.next_offset < self._log.max_offset(source.topic, source.queue_id)
            for source in (self._timer, *self._revive.values())
        )

    def follow_copies(self, limit: int) -> list[tuple[int, str, str]]:
        """Read the revive topic on a leader, which has recorded its own writes already.

        Returns the revive queue, the topic and the group of each checkpoint found.
        """
        seen = []
        for queue_id, source in self._revive.items():
            while limit > 0 and (source.ahead or self._fill(source)):
                if not source.ahead:
                    continue
                _, offset, stored = source.ahead.popleft()
                record = decode(stored.body)
                if isinstance(record, CheckpointRecord):
                    self._journal.read_copy(record, offset, queue_id)
                    seen.append((queue_id, record.key.topic, record.key.group))
                limit -= 1
        return seen

    def step(self, limit: int) -> bool:
        """Read about `limit` records; return whether there is more."""
        sources = [self._timer, *self._revive.values()]
        self._skip_settled()
        while limit > 0:
            limit -= sum(self._fill(source) for source in sources if not source.ahead)
            ready = [source for source in sources if source.ahead]
            if not ready:
                return False
            source = min(ready, key=lambda candidate: candidate.ahead[0][0])
            self._process(source, *source.ahead.popleft())
            limit -= 1
        return True

    def _begin_timer(self) -> None:
        log, timer = self._log, self._timer
        first = log.min_offset(TIMER_TOPIC, TIMER_QUEUE)
        mark = self._committed(TIMER_TOPIC, TIMER_QUEUE)
        if mark is None:
            newest_ms = self._newest_timer_ms()
            if newest_ms:
                mark = log.reader.offset_by_time(TIMER_TOPIC, TIMER_QUEUE, newest_ms - OPEN_MAX_MS)
        timer.next_offset = max(first, min(mark or 0, log.max_offset(TIMER_TOPIC, TIMER_QUEUE)))
        begin = log.get(TIMER_TOPIC, TIMER_QUEUE, timer.next_offset, 1)
        # No record read now reached the revive topic before it was written.
        self._since = begin.records[0].physical_offset if begin.records else None

    def _newest_timer_ms(self) -> int:
        end = self._log.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        newest = self._log.get(TIMER_TOPIC, TIMER_QUEUE, end - 1, 1) if end else None
        if newest is None or not newest.records:
            return 0
        return decode_delivery(newest.records[0].data).store_timestamp_ms

    def _begin_revive(self, queue_id: int) -> int:
        log = self._log
        first = log.min_offset(self._topic, queue_id)
        mark = self._committed(self._topic, queue_id)
        if mark is None:
            return first
        if self._since is not None:
            mark = min(mark, log.reader.offset_by_position(self._topic, queue_id, self._since))
        return max(first, min(mark, log.max_offset(self._topic, queue_id)))

    def _skip_settled(self) -> None:
        """Skip to the leader's mark: everything before it is settled."""
        timer = self._timer
        mark = min(
            self._committed(TIMER_TOPIC, TIMER_QUEUE) or 0,
            self._log.max_offset(TIMER_TOPIC, TIMER_QUEUE),
        )
        if mark > timer.position:
            timer.ahead.clear()
            timer.next_offset = mark

    def _fill(self, source: _Source) -> int:
        """Read further in a queue; return the cost in records."""
        log = self._log
        if source.next_offset >= log.max_offset(source.topic, source.queue_id):
            return 0
        result = log.get(
            source.topic,
            source.queue_id,
            source.next_offset,
            _READ_RECORDS,
            _READ_BYTES,
            tag_codes=TAG_CODES,
        )
        # For every status: the next offset is where a record may be, never this one again.
        source.next_offset = max(result.next_offset, source.next_offset + 1)
        if result.status is GetStatus.FOUND:
            source.ahead.extend(
                (stored.physical_offset, stored.queue_offset, decode_delivery(stored.data))
                for stored in result.records
            )
        return _LOOK_COST

    def _process(self, source: _Source, physical: int, offset: int, stored: Stored) -> None:
        self.newest_ms = stored.store_timestamp_ms
        record = decode(stored.body)
        if record is None:
            return
        where = physical, stored.store_timestamp_ms
        journal = self._journal
        if isinstance(record, AckRecord):
            journal.read_ack(record, stored.store_timestamp_ms)
            return
        if self._is_left_over(record.key.group, physical):
            return
        if source is self._timer:
            revive_queue = whole_number(property_value(stored.properties, _REAL_QUEUE)) or 0
            journal.read_checkpoint(record, revive_queue, offset, where)
            return
        if not property_value(stored.properties, _OUT_MS):
            # It never was in the timer topic; later records of it are after the read position.
            journal.read_checkpoint(record, source.queue_id, self._timer.position, where)
        journal.read_copy(record, offset, source.queue_id)
        if offset < (self._committed(self._topic, source.queue_id) or 0):
            journal.read_passed(record.key)
