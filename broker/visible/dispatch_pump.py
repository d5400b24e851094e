"""The dispatch pump: builds the consume queues up to what readers may see, and wakes the readers.

An append, a flush, a confirm and data from the leader all end in `schedule`. Promises: nothing here
waits; the pump runs at most once a turn of the event loop; readers never see records beyond
`readable_limit` (docs/design/delivery-guarantees.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ...store.format.topic_names import META_TOPIC

if TYPE_CHECKING:
    import asyncio

    from ...ha.engine import Replication
    from ...store.format.results import Arrival
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership

# One turn of dispatch: long enough to catch up quickly, short enough (about 20 ms) for the loop.
_DISPATCH_RECORDS = 2_000
# Pauses before a queue is read again whose unit is searched in the log, or whose record waits for a
# repair.
_SEARCH_S = 0.002
_REPAIR_S = 0.5
# How long new messages may stay out of the queues while no poll waits.
_IDLE_S = 0.002


class MetaChanges(Protocol):
    """The part that applies changes of topics and groups (`metadata/log.py`)."""

    def apply(self, arrival: Arrival) -> None:
        """Apply a record of META_TOPIC."""


class ArrivalListener(Protocol):
    """A part that polls wait in."""

    @property
    def waiting(self) -> int:
        """Polls that wait; while there are any, the pump runs in the turn of the append."""

    def notify(self, topic: str, queue_id: int) -> None:
        """New messages of a queue can be read."""


class DispatchPump:
    """Dispatches the readable part of the log and notifies the parts that read it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        replication: Replication,
        leadership: Leadership,
        meta_log: MetaChanges,
    ) -> None:
        self._loop = loop
        self._store = store
        self._replication = replication
        self._leadership = leadership
        self._meta_log = meta_log
        self._listeners: list[ArrivalListener] = []
        self._watchers: dict[str, Callable[[], None]] = {}
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._resume_timer: asyncio.TimerHandle | None = None

    def add_listener(self, listener: ArrivalListener) -> None:
        """Notify `listener` of new messages of every topic."""
        self._listeners.append(listener)

    def watch(self, topic: str, watcher: Callable[[], None]) -> None:
        """Call `watcher` in the turn in which records of `topic` become readable."""
        self._watchers[topic] = watcher

    def unwatch(self, topic: str) -> None:
        """Undo `watch`."""
        self._watchers.pop(topic, None)

    def readable_limit(self) -> int:
        """The log offset up to which consumers may see messages."""
        store, leadership = self._store, self._leadership
        if not leadership.is_leader:
            return min(self._replication.confirm, store.log_end)
        policy = leadership.policy
        limit = store.flushed_offset if policy.sync_flush else store.log_end
        return min(limit, self._replication.confirm) if policy.sync_replication else limit

    def appended(self) -> None:
        """The log grew: replicate it, and dispatch it as soon as it may be read."""
        self._replication.appended()
        self.schedule()

    def schedule(self) -> None:
        """Run the pump in this turn of the loop if a poll waits, within 2 ms otherwise.

        However many events ask for it, it runs once: writing the units of many turns together saves
        most of its cost. Readers call `catch_up` first.
        """
        if self._scheduled:
            return
        for listener in self._listeners:
            if listener.waiting:
                self._scheduled = True
                self._loop.call_soon(self.run)
                return
        if self._timer is None:
            self._timer = self._loop.call_later(_IDLE_S, self.run)

    def catch_up(self) -> None:
        """Run a pump that is due, so that a read sees everything appended before it."""
        if self._timer is not None:
            self.run()

    def run(self) -> None:
        """Build the consume queues up to the readable limit, apply metadata, wake long polls."""
        self._scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limit = self.readable_limit()
        if self._store.dispatched_offset >= limit:
            return
        dispatched = self._store.writer.dispatch(limit, _DISPATCH_RECORDS)
        queues = dispatched.queues()
        changes = {queue for queue in queues if queue[0] == META_TOPIC}
        if changes:
            for arrival in dispatched:
                if arrival.topic == META_TOPIC:
                    self._meta_log.apply(arrival)
        self._notify(queues - changes)
        if len(dispatched) >= _DISPATCH_RECORDS:
            self.schedule()

    def _notify(self, queues: Iterable[tuple[str, int]]) -> None:
        for topic, queue_id in queues:
            for listener in self._listeners:
                listener.notify(topic, queue_id)
            if topic in self._watchers:
                self._watchers[topic]()

    def resume_later(self) -> None:
        """Wake the polls of a damaged queue once its unit is found or its record repaired."""
        if self._resume_timer is None and not self._closed:
            delay_s = _SEARCH_S if self._store.blocks.searching else _REPAIR_S
            self._resume_timer = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        self._resume_timer = None
        blocks = self._store.blocks
        self._notify(blocks.resume())
        if blocks.searching:
            self.resume_later()

    def run_to_limit(self) -> None:
        """Run until nothing more may be read, or dispatch makes no progress (a full disk)."""
        store = self._store
        before = -1
        while before < store.dispatched_offset < self.readable_limit():
            before = store.dispatched_offset
            self.run()

    def close(self) -> None:
        """Dispatch everything that may be read, for a clean stop, and never run again by a
        timer."""
        self._store.writer.commit()
        self.run_to_limit()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        # Replication continues for a moment after the store has stopped.
        self._scheduled = self._closed = True
