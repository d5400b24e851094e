"""Journal service: the journal of pop state in a running broker, on a leader and on a follower.

Promises: a batch that is still in flight after `popCkStayBufferTime` is in the log a flush later
(`writer.py`), and so is every change of the invisible time and every acknowledgement of a delivery
that is in the log. A clean stop writes everything. A consumer never waits for the journal: a crash
costs another delivery of what was unwritten.

A leader reads the log once, before it serves, and then reads only what surfaced in the revive
topic, so that the consumer offsets there can advance (`recovery.py`). A follower reads
continuously; when its leader fails it holds the deliveries in flight, and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ..names.delivery import Delivery
from ..names.retry import queue_topics
from ..pop.journal_api import Restored
from .checkpoint import Book, Checkpoint
from .core import PopJournal
from .recovery import ReviveReader
from .revive_codec import REVIVE_GROUP, decode
from .writer import FLUSH_S, SLICE, JournalWriter

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Group, Metadata
    from ..names.delivery import PopOptions
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..pop.group import PopGroup
    from ..pop.queue import PopQueue
    from ..visible.dispatch_pump import DispatchPump

    CreateState = Callable[[str, Group], object]

logger = logging.getLogger(__name__)

#: Interval at which surfaced checkpoints are read and the revive group's offsets advance.
WATCH_S = 1.0
#: The consumer offset on disk is seconds old; acknowledgements older than this are below it.
CONSUMED_AGE_MS = 60_000
_BOOKS_SLACK = 1_024


class JournalService:
    """The journal; it neither leads nor follows before `open`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        pump: DispatchPump,
        appender: InternalAppender,
        system_topics: SystemTopics,
    ) -> None:
        self._clock = runtime.clock
        self._config = runtime.config
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._leadership = leadership
        self._pump = pump
        self.core = self._new_core()
        self.writer = JournalWriter(
            runtime=runtime,
            store=store,
            offsets=offsets,
            appender=appender,
            system_topics=system_topics,
            core=self.core,
        )
        self.topic = self.writer.topic
        self._reader: ReviveReader | None = None
        self.leading = False
        #: By the id of a queue's state, which the book's holder keeps alive.
        self._books: dict[int, Book] = {}
        self._books_limit = _BOOKS_SLACK
        self._read_handle: asyncio.Handle | None = None
        self._watch_handle: asyncio.Handle | None = None
        #: Checkpoints read from the revive topic, by its queue, and their topic and group.
        self.surfaced = Counter[tuple[int, str, str]]()

    def _new_core(self) -> PopJournal:
        config = self._config
        return PopJournal(
            stay_ms=config.pop_ck_stay_buffer_time,
            margin_ms=config.pop_ck_stay_buffer_time_out,
            buffer_max=config.pop_ck_max_buffer_size,
        )

    # Events of the pop state.

    def delivered(
        self, core: PopGroup, queue: PopQueue, offsets: Sequence[int], terms: PopOptions
    ) -> None:
        """See `Journal`."""
        if not self.leading or not offsets:
            return
        book = self._book(core, queue)
        # A redelivery in place has a pop time of its own.
        first = queue.unacked.get(offsets[0])
        pop_ms = terms.now_ms if first is None else first.pop_ms
        self.core.delivered(book, offsets, pop_ms, terms.invisible_ms, terms.revive_queue)
        if self.writer.armed is None:
            self.writer.arm()

    def settled(self, core: PopGroup, queue: PopQueue, *offsets: int) -> None:
        """See `Journal`."""
        if self.leading:
            book = self._books.get(id(queue))
            if book is None or book.holder[1] is not queue:
                book = self._hold(core, queue)
            settled = self.core.settled
            for offset in offsets:
                settled(book, offset)
            if self.writer.armed is None:
                self.writer.arm()

    def flush_soon(self) -> None:
        """See `Journal`."""
        self.writer.flush_soon()

    def changed(  # noqa: PLR0917 - as in `Journal`
        self,
        core: PopGroup,
        queue: PopQueue,
        delivery: Delivery,
        now_ms: int,
        invisible_ms: int,
        counted: bool,
    ) -> None:
        """See `Journal`."""
        if self.leading:
            book = self._book(core, queue)
            hidden_ms = delivery.visible_ms - delivery.pop_ms
            self.core.changed(
                book, delivery.offset, delivery.pop_ms, hidden_ms, not delivery.counted
            )
            if self.writer.armed is None:
                self.writer.arm()

    def restored(self, core: PopGroup) -> Restored:
        """See `Journal`."""
        reader = self._reader
        if not self.leading and reader is not None:
            while reader.step(SLICE):
                pass  # at most the records of 0.2 s: a follower reads continuously
        restored, now_ms = Restored(), self._clock.forward_ms()
        for kind, topic in enumerate(core.topics):
            for book in self.core.books_of(topic, core.group):
                key = kind, book.queue_id
                self._prune(book)
                restored.consumed.extend((key, offset) for offset in sorted(book.consumed))
                if self.leading:
                    self.core.handed_over(book)
                for offset in sorted(book.open):
                    restored.deliveries.append((key, _delivery(offset, book.open[offset], now_ms)))
        return restored

    def wants(self, _properties: bytes, body: bytes) -> bool:
        """Return whether a record that is due must surface in the revive topic; for the timers."""
        if not self.leading:
            return True  # unknown; a surplus record there is harmless
        record = decode(body)
        return record is not None and self.core.wants(record)

    def forget(self, topic: str | None, group: str | None) -> None:
        """Forget a deleted topic or group."""
        self.core.forget(topic, group)
        self._books.clear()
        if self.leading and self.writer.armed is None and self.core.waiting:
            self.writer.arm()

    def _book(self, core: PopGroup, queue: PopQueue) -> Book:
        book = self._books.get(id(queue))
        if book is None or book.holder[1] is not queue:
            return self._hold(core, queue)
        return book

    def _hold(self, core: PopGroup, queue: PopQueue) -> Book:
        if len(self._books) >= self._books_limit:
            self._books = {key: book for key, book in self._books.items() if book.open}
            self.core.drop_empty()
            self._books_limit = _BOOKS_SLACK + 2 * len(self._books)
        book = self.core.book(queue.topic, core.group, queue.queue_id)
        book.holder = core, queue
        self._books[id(queue)] = book
        return book

    def _prune(self, book: Book) -> None:
        position = self._offsets.position(book.topic, book.group, book.queue_id)
        if position is not None and self._reader is not None:
            since_ms = self._reader.newest_ms - CONSUMED_AGE_MS
            self.core.prune(book, position.offset, position.rewound_at, since_ms)

    # Start, role changes and stop.

    async def open(self, create_state: CreateState) -> None:
        """Read the log, then lead or follow."""
        await self._read()
        if self._leadership.is_leader:
            self.lead(create_state)
        else:
            self.follow()
        self._watch()

    def lead(self, create_state: CreateState) -> None:
        """See `Journal`: states are created for all groups with messages in flight."""
        if self._read_handle is not None:
            self._read_handle.cancel()
            self._read_handle = None
        assert self._reader is not None
        while self._reader.step(SLICE):
            pass  # at most the records of 0.2 s: a follower reads continuously
        self.core.read_everything()
        self.leading = True
        logger.info("pop_journal.leads open=%d", self.core.open_count)
        pairs = {(book.topic, book.group) for book in self.core.all_books() if book.open}
        for topic, group in {self._origin(*pair) for pair in pairs}:
            self._restore_group(topic, group, create_state)
        if self.core.waiting and self.writer.armed is None:
            self.writer.arm()

    def follow(self) -> None:
        """See `Journal`; reads the log continuously."""
        if self.leading:
            # What was not written is lost: from now on the log alone counts.
            self.leading = False
            self.writer.stop()
            self.core = self.writer.core = self._new_core()
            self._books.clear()
            self._reader = self._new_reader()
        if self._read_handle is not None:
            self._read_handle.cancel()
        self._read_handle = self._loop.call_later(FLUSH_S, self._read_continuously)

    def stop(self) -> None:
        """Write everything and stop."""
        if self.leading and self.core.waiting:
            self.flush_all()
            self._pump.close()  # dispatch these records, too
        self.leading = False
        self.writer.stop()
        for handle in (self._read_handle, self._watch_handle):
            if handle is not None:
                handle.cancel()
        self._read_handle = self._watch_handle = None

    def flush_all(self) -> None:
        """Write everything, also what may still wait."""
        if self.leading:
            self.writer.flush_all()

    async def _read(self) -> None:
        store, pump = self._store, self._pump
        before = -1
        while before < store.dispatched_offset < pump.readable_limit():
            before = store.dispatched_offset
            pump.run()
            await asyncio.sleep(0)
        reader = self._reader = self._new_reader()
        while reader.step(SLICE):  # noqa: ASYNC110 - a slice a turn
            await asyncio.sleep(0)

    def _new_reader(self) -> ReviveReader:
        reader = ReviveReader(
            self._store,
            self.core,
            self.topic,
            self._committed,
            self._metadata.is_of_deleted_group,
        )
        reader.watch(self._revive_queues())
        return reader

    def _read_continuously(self) -> None:
        reader, loop = self._reader, self._loop
        assert reader is not None
        # Rescheduled first, so that an error does not end the reading.
        self._read_handle = loop.call_later(FLUSH_S, self._read_continuously)
        self._offsets.catch_up(self._store.log_end)
        if reader.behind() and reader.step(SLICE):
            self._read_handle.cancel()
            self._read_handle = loop.call_soon(self._read_continuously)

    def _watch(self) -> None:
        """Read what surfaced in the revive topic, and advance the revive group's offsets."""
        self._watch_handle = self._loop.call_later(WATCH_S, self._watch)
        reader, core, store = self._reader, self.core, self._store
        assert reader is not None
        reader.watch(self._revive_queues())
        if self.leading:
            self.surfaced.update(reader.follow_copies(SLICE))
        # The copies first: a copy that is passed no longer holds back the timer topic's mark.
        marks = {
            (self.topic, queue_id): core.revive_mark(queue_id, offset)
            for queue_id, offset in reader.revive_offsets().items()
        }
        end = store.max_offset(TIMER_TOPIC, TIMER_QUEUE) if self.leading else reader.timer_offset
        marks[TIMER_TOPIC, TIMER_QUEUE] = core.timer_mark(end)
        if self.leading:
            for (topic, queue_id), mark in marks.items():
                before = self._committed(topic, queue_id) or 0
                # An offset moves back only if a crash has cut the log below it.
                if mark > before or before > store.max_offset(topic, queue_id):
                    self._offsets.commit(topic, REVIVE_GROUP, queue_id, mark, mark)
        else:
            for book in list(core.consuming.values()):
                self._prune(book)

    def revive_rows(self) -> list[tuple[int, int, int | None]]:
        """Return queue id, unsettled records and first due time of each revive topic queue."""
        core, rows = self.core, []
        for queue_id in self._revive_queues():
            mark = self._committed(self.topic, queue_id) or 0
            end = self._store.max_offset(self.topic, queue_id)
            rows.append((queue_id, max(0, end - mark), core.first_due_ms(queue_id)))
        return rows

    def _committed(self, topic: str, queue_id: int) -> int | None:
        return self._offsets.get(topic, REVIVE_GROUP, queue_id)

    def _revive_queues(self) -> range:
        topic = self._metadata.topic(self.topic)
        return range(topic.read_queues if topic is not None else 0)

    def _origin(self, topic: str, group: str) -> tuple[str, str]:
        """Return the topic that the group subscribed to, for one of its retry topics."""
        for separator in "_+":
            prefix = f"%RETRY%{group}{separator}"
            if topic.startswith(prefix):
                return topic.removeprefix(prefix), group
        return topic, group

    def _restore_group(self, topic: str, name: str, create_state: CreateState) -> None:
        """Create the pop state of a group with messages in flight, so that they become due."""
        group = self._metadata.group(name)
        names = queue_topics(topic, name)
        if self._metadata.topic(topic) is None or group is None:
            for topic_name in names:
                self.core.forget(topic_name, name)
        elif not group.orderly:
            create_state(topic, group)
        else:
            # The group became FIFO: it continues at the first message that is not settled.
            for book in self.core.books_of(topic, name):
                if book.open:
                    first = min(book.open)
                    self._offsets.commit(topic, name, book.queue_id, first)
            for topic_name in names:
                self.core.forget(topic_name, name)


def _delivery(offset: int, checkpoint: Checkpoint, now_ms: int) -> Delivery:
    return Delivery(
        offset,
        checkpoint.pop_ms,
        # Never hidden for longer than asked, whatever clock the pop time is of.
        min(checkpoint.visible_ms, now_ms + checkpoint.invisible_ms),
        1,
        stored=checkpoint.timer_offset >= 0,
        counted=not checkpoint.suspended,
    )
