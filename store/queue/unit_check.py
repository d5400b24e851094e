"""Unit check: compares consume queue units with the log, in the background.

Readers notice a unit whose record does not match (unit_repair.py). They do not notice a wrong tags
code, which hides the message from filtered readers, and they meet a damaged unit only when they
reach it. The check walks the log in slices and compares every record with its units: physical
offset, size and tags code, also of extension units. A unit that differs is written again, unless it
has a sound record of its own, or the record is damaged.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..format.errors import OffsetOutOfRangeError
from ..format.queue_ext import is_address
from ..format.topic_names import is_lmq
from ..log.commit_log import CommitLog
from ..scan.dtypes import QUEUE_UNIT
from ..scan.properties import TagsCodes, groups
from ..scan.walk import StopReason, TopicTable, walk
from .building import Units, units_of
from .consume_queue import ConsumeQueue
from .table import QueueTable
from .unit_repair import CHECK_BYTES, UnitRepair, column_units

#: Number of cached topics; the cache is then cleared.
_TOPICS_MAX: Final = 10_000


class UnitCheck:
    """One round over the log; call `step` until it returns false. On the thread that reads."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        repair: UnitRepair,
        is_damaged: Callable[[ConsumeQueue, bytes, int, int], bool],
    ) -> None:
        """`is_damaged(queue, record, physical offset, tags code of the unit)` returns whether a
        record is known to be damaged."""
        self._log = log
        self._table = queues
        self._repair = repair
        self._is_damaged = is_damaged
        self._position = log.start
        self._topics = TopicTable()
        self._codes = TagsCodes()

    def step(self, end: int) -> bool:
        """Check the next records that end at or before `end`, the end of what is dispatched; return
        whether there are more."""
        log = self._log
        self._position = max(self._position, log.start)
        if self._position >= end:
            return False
        if len(self._topics) > _TOPICS_MAX:
            self._topics = TopicTable()
        try:
            segment = log.segment_at(self._position)
        except OffsetOutOfRangeError:
            return False
        begin = self._position - segment.start
        stop = min(begin + CHECK_BYTES, end - segment.start, segment.size)
        with segment.hold() as data:
            records = walk(data, segment.start, begin, stop, "skip", topics=self._topics)
            try:
                for columns in records:
                    assert records.raw is not None
                    ends = columns.physical_offset + columns.size
                    whole = columns.take(ends <= end)
                    self._compare(units_of(records.raw, whole, self._topics, self._codes))
            finally:
                records.close()
        if records.stop is StopReason.BLANK:
            self._position = segment.end
        elif records.stop is StopReason.END and records.end > begin:
            self._position = segment.start + records.end
        else:
            self._position = segment.start + stop
        return True

    def _compare(self, units: Units) -> None:
        for topic_id, queue_id, rows in groups(units.topic_id, units.queue_id):
            queue = self._table.queues.get((self._topics.names[topic_id], queue_id))
            if queue is not None:
                self._compare_queue(queue, units.take(rows))

    def _compare_queue(self, queue: ConsumeQueue, units: Units) -> None:
        present = (units.number >= queue.min_offset) & (units.number < queue.max_offset)
        if not present.all():
            units = units.take(present)
        if not len(units):
            return
        first, stop = int(units.number.min()), int(units.number.max()) + 1
        if stop - first > 2 * len(units):  # a light queue that was restarted
            for row in range(len(units)):
                self._compare_queue(queue, units.take(slice(row, row + 1)))
            return
        raw = b""
        while first + len(raw) // QUEUE_UNIT.itemsize < stop:
            at = first + len(raw) // QUEUE_UNIT.itemsize
            raw += self._repair.read(queue, at, stop - at)
        held: Any = np.frombuffer(raw, QUEUE_UNIT)[units.number - first]
        same = (held["offset"] == units.offset) & (held["size"] == units.size)
        same &= held["code"] == units.code
        if not same.all():
            self._restore(queue, units.take(~same), held[~same])

    def _restore(self, queue: ConsumeQueue, units: Units, held: Any) -> None:
        restored: dict[int, tuple[int, int, int]] = {}
        light = is_lmq(queue.topic)
        for (number, unit), now in zip(column_units(units), held.tolist(), strict=True):
            if now[:2] == unit[:2]:
                code = now[2]
                if is_address(code) and self._table.exts.resolve(queue, code) == unit[2]:
                    continue
            elif light or self._repair.is_sound(queue, number, *now[:2]):
                continue
            record = self._log.read(unit[0], unit[1])
            code = now[2] if now[:2] == unit[:2] else unit[2]
            if not self._is_damaged(queue, record, unit[0], code):
                restored[number] = unit
        self._repair.write_units(queue, restored)
