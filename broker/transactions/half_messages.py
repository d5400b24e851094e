"""Half messages of one leader: their records, and their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.errors import StoreError
from ...store.format.record import Record, decode
from .core import HalfMessage, Outcome, TransactionTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...store.message_store import MessageStore
    from ..metadata.tables import Topic
    from .ops import OpWriter
    from .stats import CountsFile, TransactionStats


class HalfMessages:
    """The table with the parts that follow its changes: op records, the counts file, statistics."""

    def __init__(
        self,
        store: MessageStore,
        table: TransactionTable,
        ops: OpWriter,
        file: CountsFile,
        stats: TransactionStats,
        *,
        forget: Callable[[str, str], None],
    ) -> None:
        """`forget` lets a message of a topic be sent again with its id."""
        self._forget = forget
        self._store = store
        self._ops = ops
        self._file = file
        self._stats = stats
        self.table = table

    def record(self, half: HalfMessage) -> Record | None:
        """Return the newest copy of a half message; None if retention has deleted it."""
        try:
            return decode(self._store.record_at(half.physical))
        except StoreError:
            return None

    def end(self, half: HalfMessage, outcome: Outcome) -> None:
        """Record an outcome; its op record follows."""
        self.table.end(half, outcome)
        if outcome is not Outcome.COMMITTED:
            self._forget(half.topic, half.key)
        self._file.changed()
        self._ops.ended()

    def give_up(self, half: HalfMessage) -> None:
        """End a half message whose outcome was not reported in time."""
        self._stats.given_up += 1
        self.end(half, Outcome.GIVEN_UP)

    def lose(self, half: HalfMessage) -> None:
        """End a half message whose record retention has deleted."""
        self._stats.lost += 1
        self.end(half, Outcome.GIVEN_UP)

    def open(self) -> Iterator[HalfMessage]:
        """Return the half messages without an outcome."""
        return (half for half in self.table if half.outcome is Outcome.OPEN)


def queue_of(half: HalfMessage, topic: Topic) -> int:
    """Return the queue of a committed message; its topic may have fewer queues by now."""
    queues = max(1, topic.write_queues)
    return half.queue_id if half.queue_id < queues else half.queue_id % queues
