"""Finds consume queues whose first files were removed although the log holds their records.

A queue whose files begin above 0 does so because retention deleted the records before, or because
it was built from a log that begins later. Both leave no record of the queue between the log start
and its first unit. Files that were lost leave such records; readers would never see them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..format.record_layout import UNIT_BYTES

if TYPE_CHECKING:
    from ..log.commit_log import CommitLog
    from ..queue.consume_queue import ConsumeQueue
    from ..queue.table import QueueTable


def lacking_begins(log: CommitLog, queues: QueueTable) -> list[ConsumeQueue]:
    """Return the queues that lack units of records before their first one.

    Reads the log from its start to the last first unit of a queue in question: of most stores
    nothing, as the first file of a queue holds units of deleted records or begins with fillers.
    """
    questionable: dict[ConsumeQueue, int] = {}
    for queue in queues.queues.values():
        first = queue.files_begin // UNIT_BYTES
        if first > 0 and queue.min_offset == first < queue.max_offset:
            position = queue.unit(first)[0]
            if position > log.start:
                questionable[queue] = min(position, log.end)
    lacking: set[ConsumeQueue] = set()
    end = max(questionable.values(), default=log.start)
    for segment in log.segments_between(log.start, end):
        stop = min(end - segment.start, segment.size)
        with segment.hold() as data:
            lacking |= _with_earlier_records(data, segment.start, stop, questionable)
    return [queue for queue in questionable if queue in lacking]


def _with_earlier_records(
    data: memoryview, base: int, stop: int, queues: Iterable[ConsumeQueue]
) -> set[ConsumeQueue]:
    """Return the queues that have a record before their first unit, among the records that begin
    before `stop` in a segment."""
    from ..scan.walk import walk  # numpy: loaded only if there is something to read

    earlier = set()
    records = walk(data, base, 0, stop, "skip")
    try:
        for columns in records:
            for queue in queues:
                topic_id = records.topics.number_of(queue.topic)
                own = (columns.topic_id == topic_id) & (columns.queue_id == queue.queue_id)
                if (own & (columns.queue_offset < queue.min_offset)).any():
                    earlier.add(queue)
    finally:
        records.close()
    return earlier
