"""What the leader before delivered, and the progress on disk does not know: found in the log.

The progress is behind the deliveries by up to a few seconds (`timer_saver.py`), so a start after a kill
begins at messages whose copies the log has already. A copy keeps everything of its message and says when
it was dequeued; the queues of its topic are read from the time on at which the oldest of them can have
been stored. So a crash repeats only what the log lost. Promises: each copy settles one message, so that
what was really sent twice comes twice; the loop is given up when the time is over; a topic is looked
at when one of its messages from before is due, and nothing is kept of topics without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.properties import property_value
from ...store.format.record import Delivery, decode_delivery
from .delivery_copy import DEQUEUED

if TYPE_CHECKING:
    from ..node import Node
    from .timer_core import Timed

_RECORDS = 128
_BYTES = 1 << 20
_LOOK_MAX = 2_000_000
"""Records of a topic that are looked at, half a minute of work: progress that is further behind than that
was not saved for a long time (a broken disk), and the rest is repeated."""
_CLOCKS_MS = 10_000
"""What is due later than that after the start cannot have been delivered, by whichever leader's clock."""

Mark = tuple[bytes, bytes, bytes, int]


class TimerDedup:
    """One start of a leader."""

    def __init__(self, node: Node, begin_ms: int) -> None:
        self._node = node
        self._begin_ms = begin_ms
        self._until_ms = node.clock.wall_ms() + _CLOCKS_MS
        self.log_end = node.store.log_end
        """Records behind it are this leader's own."""
        self._found: dict[str, Counter[Mark]] = {}
        self._looking: dict[str, Iterator[None]] = {}

    @property
    def visible(self) -> bool:
        """Whether the queues show all that the log had at the start."""
        return self._node.store.dispatched_offset >= self.log_end

    def _concerns(self, timed: Timed) -> bool:
        """Whether it may have been delivered before this start."""
        return timed.place < self.log_end and timed.due_ms <= self._until_ms and not timed.rolled

    def ready(self, messages: Iterable[Timed], stop_ns: int) -> bool:
        """Look at the topics of messages that are due; False: there is more to look at."""
        for topic in {timed.topic for timed in messages if self._concerns(timed)}:
            if topic not in self._found:
                self._found[topic] = Counter()
                self._looking[topic] = self._look(topic)
            for _ in self._looking.get(topic, ()):
                if self._node.clock.steady_ns() >= stop_ns:
                    return False
            self._looking.pop(topic, None)
        return True

    def taken_from(self, due: list[Timed]) -> list[Timed]:
        """Take those out of `due` whose copies are in the log; they are returned."""
        if not any(map(self._concerns, due)):
            if due and due[0].due_ms > self._until_ms:
                self._found.clear()  # everything from before the start has been dealt with
            return []
        taken: list[Timed] = []
        left: list[Timed] = []
        for timed in due:
            (taken if self._take(timed) else left).append(timed)
        due[:] = left
        return taken

    def _take(self, timed: Timed) -> bool:
        """Whether its copy is in the log; the next one with the same content needs another."""
        found = self._found.get(timed.topic)
        if not found or not self._concerns(timed):
            return False
        try:
            mark = _mark(decode_delivery(self._node.store.record_at(timed.place)))
        except (OffsetOutOfRangeError, RecordFormatError):
            return False
        if not found[mark]:
            return False
        found[mark] -= 1
        return True

    def _look(self, topic: str) -> Iterator[None]:
        """Collect the copies; stops after each read."""
        store, found, left = self._node.store, self._found[topic], _LOOK_MAX
        for queue_id in sorted(number for name, number in store.queues() if name == topic):
            offset = store.offset_by_time(topic, queue_id, self._begin_ms)
            while left > 0:
                result = store.get(topic, queue_id, offset, _RECORDS, _BYTES)
                for stored in result.records:
                    if stored.physical_offset < self.log_end:
                        record = decode_delivery(stored.data)
                        if property_value(record.properties, DEQUEUED):
                            found[_mark(record)] += 1
                left -= len(result.records)
                if result.next_offset <= offset or (
                    result.records and result.records[-1].physical_offset >= self.log_end
                ):
                    break
                offset = result.next_offset
                yield


def _mark(record: Delivery) -> Mark:
    """The same for a message that waits and its copy, and seldom for anything else."""
    properties = record.properties
    return (
        property_value(properties, b"UNIQ_KEY"),
        property_value(properties, b"TIMER_DELIVER_MS"),
        property_value(properties, b"TIMER_OUT_MS"),
        record.body_crc,
    )
