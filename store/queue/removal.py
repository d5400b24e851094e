"""Removing consume queues that are not used any more; they start at offset 0 if they are used
again."""

from collections.abc import Iterable

from ..digests import StoreDigests
from ..format.record_layout import FILLER_SIZE
from ..format.topic_names import is_lmq
from ..log.commit_log import CommitLog
from .table import QueueTable


class QueueRemoval:
    """The removal of queues of one store."""

    def __init__(self, table: QueueTable, log: CommitLog, digests: StoreDigests) -> None:
        self._table = table
        self._log = log
        self._digests = digests

    def remove_lmq(self, name: str) -> bool:
        """Remove the units of a light queue, not its records; return false if it does not exist or
        has records that are not dispatched. Raises OSError."""
        queue = self._table.queues.get((name, 0))
        if queue is None or not is_lmq(name) or queue.next_offset > queue.max_offset:
            return False
        self._table.discard(queue)
        self._table.lmq_count -= 1
        return True

    def remove_expired(self, queues: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Remove and return those of these unused queues of which retention has deleted all
        records. Raises OSError."""
        expired = [queue for queue in queues if self._has_expired(*queue)]
        if expired:
            self._digests.forget_queues(expired)  # first: a start goes on at a noted end
        for queue in expired:
            self._table.discard(self._table.queues[queue])
        return expired

    def _has_expired(self, topic: str, queue_id: int) -> bool:
        """Return whether retention has deleted all records of an ordinary queue."""
        queue = self._table.queues.get((topic, queue_id))
        if queue is None or is_lmq(topic) or queue.next_offset > queue.max_offset:
            return False
        if not queue.max_offset:
            return True
        # Not `known_end`: it is -1 for a queue without readable units.
        offset, size, _ = queue.unit(queue.max_offset - 1)
        return size != FILLER_SIZE and offset + size <= self._log.start
