"""Timer deduplication: finds due timers that were already delivered but not checkpointed.

The saved progress is up to a few seconds behind the deliveries (`timer_saver.py`), so a start after
a crash begins at messages whose copies are already in the log. A copy keeps everything of its
message and holds the time at which it was dequeued. The queues of its topic are read from the
earliest time at which a copy can have been stored. So a crash repeats only deliveries that the log
has lost. Promises: each copy settles one message, so that a message that was really sent twice is
delivered twice; reading stops when the time slice is over; a topic is read when the first of its
earlier messages is due; a topic without copies needs no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import property_value
from ...store.format.record import Delivery, checked_delivery, decode_delivery
from .delivery_copy import DEQUEUED

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.message_store import MessageStore
    from .timer_core import Timed

_RECORDS = 128
_BYTES = 1 << 20
#: Records read of one topic, about half a minute of work. Progress further behind was not saved for
#: a long time (a broken disk); the remaining messages are repeated.
_RECORDS_MAX = 2_000_000
#: Messages due later than this after the start cannot have been delivered, with any leader's clock.
_CLOCK_SKEW_MS = 10_000

Fingerprint = tuple[bytes, bytes, bytes, int]


class TimerDedup:
    """The deduplication of one term of leadership."""

    def __init__(self, clock: Clock, store: MessageStore, begin_ms: int) -> None:
        self._clock = clock
        self._store = store
        self._begin_ms = begin_ms
        self._until_ms = clock.wall_ms() + _CLOCK_SKEW_MS
        #: Later records are this leader's own.
        self.log_end = store.log_end
        self._copies: dict[str, Counter[Fingerprint]] = {}
        self._searches: dict[str, Iterator[None]] = {}

    @property
    def visible(self) -> bool:
        """Whether the queues show everything that the log held at the start."""
        return self._store.dispatched_offset >= self.log_end

    def _is_candidate(self, timed: Timed) -> bool:
        """Return whether the message may have been delivered before this start."""
        return (
            timed.physical_offset < self.log_end
            and timed.due_ms <= self._until_ms
            and not timed.rolled
        )

    def prepare(self, messages: Iterable[Timed], stop_ns: int) -> bool:
        """Read the topics of due messages until `stop_ns`; return False if more is left."""
        for topic in {timed.topic for timed in messages if self._is_candidate(timed)}:
            if topic not in self._copies:
                self._copies[topic] = Counter()
                self._searches[topic] = self._search(topic)
            for _ in self._searches.get(topic, ()):
                if self._clock.steady_ns() >= stop_ns:
                    return False
            self._searches.pop(topic, None)
        return True

    def remove_delivered(self, due: list[Timed]) -> list[Timed]:
        """Remove and return the messages of `due` whose copies are in the log."""
        if not any(map(self._is_candidate, due)):
            if due and due[0].due_ms > self._until_ms:
                self._copies.clear()  # all messages from before the start are settled
            return []
        delivered: list[Timed] = []
        left: list[Timed] = []
        for timed in due:
            (delivered if self._take_copy(timed) else left).append(timed)
        due[:] = left
        return delivered

    def _take_copy(self, timed: Timed) -> bool:
        """Use up one copy of the message; return False if there is none."""
        copies = self._copies.get(timed.topic)
        if not copies or not self._is_candidate(timed):
            return False
        try:
            record = checked_delivery(self._store.record_at(timed.physical_offset))
        except (OffsetOutOfRangeError, RecordFormatError):
            return False
        fingerprint = _fingerprint(record)
        if not copies[fingerprint]:
            return False
        copies[fingerprint] -= 1
        return True

    def _search(self, topic: str) -> Iterator[None]:
        """Collect the copies in the queues of a topic; yields after each read."""
        store, copies, left = self._store, self._copies[topic], _RECORDS_MAX
        for queue_id in sorted(number for name, number in store.queues() if name == topic):
            offset = store.reader.offset_by_time(topic, queue_id, self._begin_ms)
            while left > 0:
                result = store.get(topic, queue_id, offset, _RECORDS, _BYTES)
                for stored in result.records:
                    if stored.physical_offset < self.log_end:
                        record = decode_delivery(stored.data)
                        if property_value(record.properties, DEQUEUED):
                            copies[_fingerprint(record)] += 1
                left -= len(result.records)
                if result.next_offset <= offset or (
                    result.records and result.records[-1].physical_offset >= self.log_end
                ):
                    break
                offset = result.next_offset
                yield


def _fingerprint(record: Delivery) -> Fingerprint:
    """Return a value that a waiting message shares with its copy, and rarely with anything else."""
    properties = record.properties
    return (
        property_value(properties, b"UNIQ_KEY"),
        property_value(properties, b"TIMER_DELIVER_MS"),
        property_value(properties, b"TIMER_OUT_MS"),
        record.body_crc,
    )
