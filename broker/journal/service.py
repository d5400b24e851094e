"""The journal of pop state in a running broker: what it is told, and what it tells after a restart.

Promises: a batch that is still in flight after `popCkStayBufferTime` is in the log a flush later
(`writer.py`), and so is every change of the invisible time and every acknowledgement of what is
in the log. A clean stop writes everything. Nothing here makes a consumer wait: what a crash finds
unwritten is delivered again.

A leader reads the log once, before it serves, and then looks only for what surfaced in the revive topic,
so that the bookmarks there can follow (`recovery.py`). A follower reads along; when its leader is
gone it knows what is in flight, and writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ..pop.delivery import Delivery
from ..pop.retry import queue_topics
from .api import Restored
from .checkpoint import Book, Checkpoint
from .core import PopJournal
from .recovery import ReviveReader
from .revive_codec import REVIVE_GROUP, decode
from .writer import FLUSH_S, SLICE, JournalWriter

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ..node import Node
    from ..pop.delivery import PopOptions
    from ..pop.group import PopGroup, PopQueue

log = logging.getLogger(__name__)

WATCH_S = 1.0
"""Between two looks at what surfaced, and at how far the bookmarks may go."""
CONSUMED_AGE_MS = 60_000
"""The consumer offset on disk is seconds old; acknowledgements older than this are below it."""
_BOOKS_SLACK = 1_024


class JournalService:
    """Made with the node; `open` reads what there is, and then leads or follows."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.core = self._new_core()
        self.writer = JournalWriter(node, self.core)
        self.topic = self.writer.topic
        self._reader: ReviveReader | None = None
        self.leading = False
        self._books: dict[int, Book] = {}
        """By the id of a queue's state, which the book's holder keeps alive."""
        self._books_limit = _BOOKS_SLACK
        self._read_handle: asyncio.Handle | None = None
        self._watch_handle: asyncio.Handle | None = None
        self.surfaced = Counter[int]()
        """Checkpoints seen in the revive topic, by queue."""
        node.offsets.on_forgotten.append(self._forgotten)

    def _new_core(self) -> PopJournal:
        config = self._node.config
        return PopJournal(
            stay_ms=config.pop_ck_stay_buffer_time,
            margin_ms=config.pop_ck_stay_buffer_time_out,
            buffer_max=config.pop_ck_max_buffer_size,
        )

    # What the pop state tells.

    def delivered(
        self, core: PopGroup, queue: PopQueue, offsets: Sequence[int], terms: PopOptions
    ) -> None:
        """These offsets were given out."""
        if not self.leading or not offsets:
            return
        book = self._book(core, queue)
        # In place a message is given out again under a time of its own.
        first = queue.unacked.get(offsets[0])
        pop_ms = terms.now_ms if first is None else first.pop_ms
        self.core.delivered(book, offsets, pop_ms, terms.invisible_ms, terms.revive_queue)
        if self.writer.armed is None:
            self.writer.arm()

    def settled(self, core: PopGroup, queue: PopQueue, offset: int) -> None:
        """A delivery is done for good."""
        if self.leading:
            book = self._books.get(id(queue))
            if book is None or book.holder[1] is not queue:
                book = self._hold(core, queue)
            self.core.settled(book, offset)
            if self.writer.armed is None:
                self.writer.arm()

    def hurry(self) -> None:
        """In the next turn of the loop, with all else that is waiting."""
        self.writer.look_now()

    def changed(  # noqa: PLR0917 - as the protocol has it
        self,
        core: PopGroup,
        queue: PopQueue,
        delivery: Delivery,
        now_ms: int,
        invisible_ms: int,
        counted: bool,
    ) -> None:
        """A delivery is hidden anew."""
        if self.leading:
            book = self._book(core, queue)
            hidden_ms = delivery.visible_ms - delivery.pop_ms
            self.core.changed(
                book, delivery.offset, delivery.pop_ms, hidden_ms, not delivery.counted
            )
            if self.writer.armed is None:
                self.writer.arm()

    def restored(self, core: PopGroup) -> Restored:
        """What the log says of a group."""
        reader = self._reader
        if not self.leading and reader is not None:
            while reader.step(SLICE):
                pass  # a fifth of a second's records at most: it reads along
        found = Restored()
        for kind, topic in enumerate(core.topics):
            for book in self.core.books_of(topic, core.group):
                key = kind, book.queue_id
                self._prune(book)
                found.consumed.extend((key, offset) for offset in sorted(book.consumed))
                if self.leading:
                    self.core.handed_over(book)
                for offset in sorted(book.open):
                    found.deliveries.append((key, _delivery(offset, book.open[offset])))
        return found

    def wants(self, _properties: bytes, body: bytes) -> bool:
        """Whether a record that is due must surface in the revive topic (asked by the timers)."""
        if not self.leading:
            return True  # not known yet: it does no harm there
        record = decode(body)
        return record is not None and self.core.wants(record)

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

    def _forgotten(self, topic: str | None, group: str | None) -> None:
        """A topic or a group was deleted."""
        self.core.forget(topic, group)
        self._books.clear()
        if self.leading and self.writer.armed is None and self.core.waiting:
            self.writer.arm()

    def _prune(self, book: Book) -> None:
        position = self._node.offsets.position(book.topic, book.group, book.queue_id)
        if position is not None and self._reader is not None:
            horizon_ms = max(position.rewound_ms, self._reader.newest_ms - CONSUMED_AGE_MS)
            self.core.prune(book, position.offset, horizon_ms)

    # Life, and the log as others wrote it.

    async def open(self) -> None:
        """Read what the log says, then lead or follow."""
        await self._read()
        if self._node.leadership.is_leader:
            self.lead()
        else:
            self.follow()
        self._watch()

    def lead(self) -> None:
        """From now on this replica writes, and brings back what is due."""
        if self._read_handle is not None:
            self._read_handle.cancel()
            self._read_handle = None
        assert self._reader is not None
        while self._reader.step(SLICE):
            pass  # a fifth of a second's records at most: it read along
        self.core.read_everything()
        self.leading = True
        log.info("pop_journal.leads open=%d", self.core.open_count)
        pairs = {(book.topic, book.group) for book in self.core.all_books() if book.open}
        for topic, group in {self._origin(*pair) for pair in pairs}:
            self._bring_back(topic, group)
        if self.core.waiting and self.writer.armed is None:
            self.writer.arm()

    def follow(self) -> None:
        """Another replica writes; this one reads along."""
        if self.leading:
            # What it has not written, nobody knows: what the log says counts from now on.
            self.leading = False
            self.writer.stop()
            self.core = self.writer.core = self._new_core()
            self._books.clear()
            self._reader = self._new_reader()
        if self._read_handle is not None:
            self._read_handle.cancel()
        self._read_handle = self._node.loop.call_later(FLUSH_S, self._read_along)

    def stop(self) -> None:
        """Write everything, and no more."""
        if self.leading and self.core.waiting:
            self.flush_all()
            self._node.close()  # the queues, too, to the end of the log
        self.leading = False
        self.writer.stop()
        for handle in (self._read_handle, self._watch_handle):
            if handle is not None:
                handle.cancel()
        self._read_handle = self._watch_handle = None

    def flush_all(self) -> None:
        """Write everything, however young it is."""
        if self.leading:
            self.writer.flush_all()

    async def _read(self) -> None:
        node, store = self._node, self._node.store
        before = -1
        while before < store.dispatched_offset < node.pump.readable_limit():
            before = store.dispatched_offset
            node.pump.run()
            await asyncio.sleep(0)
        reader = self._reader = self._new_reader()
        while reader.step(SLICE):  # noqa: ASYNC110 - a slice a turn
            await asyncio.sleep(0)

    def _new_reader(self) -> ReviveReader:
        reader = ReviveReader(self._node.store, self.core, self.topic, self._committed)
        reader.watch(self._revive_queues())
        return reader

    def _read_along(self) -> None:
        reader, loop = self._reader, self._node.loop
        assert reader is not None
        # First, so that a look that fails is not the last one.
        self._read_handle = loop.call_later(FLUSH_S, self._read_along)
        self._node.offsets.catch_up(self._node.store.log_end)
        if reader.behind() and reader.step(SLICE):
            self._read_handle.cancel()
            self._read_handle = loop.call_soon(self._read_along)

    def _watch(self) -> None:
        """See what surfaced in the revive topic, and move the bookmarks."""
        self._watch_handle = self._node.loop.call_later(WATCH_S, self._watch)
        reader, core = self._reader, self.core
        assert reader is not None
        reader.watch(self._revive_queues())
        if self.leading:
            self.surfaced.update(reader.follow_copies(SLICE))
        # The copies first: what surfaced and is passed holds the mark of the timers no longer.
        marks = {
            (self.topic, queue_id): core.revive_mark(queue_id, place)
            for queue_id, place in reader.revive_places().items()
        }
        end = (
            self._node.store.max_offset(TIMER_TOPIC, TIMER_QUEUE) if self.leading else reader.place
        )
        marks[TIMER_TOPIC, TIMER_QUEUE] = core.timer_mark(end)
        if self.leading:
            for (topic, queue_id), mark in marks.items():
                before = self._committed(topic, queue_id) or 0
                # It goes back only when a crash has cut the log below it.
                if mark > before or before > self._node.store.max_offset(topic, queue_id):
                    self._node.offsets.commit(topic, REVIVE_GROUP, queue_id, mark, mark)
        else:
            for book in list(core.consuming.values()):
                self._prune(book)

    def revive_rows(self) -> list[tuple[int, int, int | None]]:
        """Queues of the revive topic: id, records that are not settled, when the first is due."""
        core, rows = self.core, []
        for queue_id in self._revive_queues():
            mark = self._committed(self.topic, queue_id) or 0
            end = self._node.store.max_offset(self.topic, queue_id)
            rows.append((queue_id, max(0, end - mark), core.first_due_ms(queue_id)))
        return rows

    def _committed(self, topic: str, queue_id: int) -> int | None:
        return self._node.offsets.get(topic, REVIVE_GROUP, queue_id)

    def _revive_queues(self) -> range:
        topic = self._node.metadata.topic(self.topic)
        return range(topic.read_queues if topic is not None else 0)

    def _origin(self, topic: str, group: str) -> tuple[str, str]:
        """The topic that a group asked for when it was given messages of this one."""
        for separator in "_+":
            prefix = f"%RETRY%{group}{separator}"
            if topic.startswith(prefix):
                return topic.removeprefix(prefix), group
        return topic, group

    def _bring_back(self, topic: str, name: str) -> None:
        """Make the pop state of a group that has messages in flight, so that what is due is due."""
        node = self._node
        group = node.metadata.group(name)
        names = queue_topics(topic, name)
        if node.metadata.topic(topic) is None or group is None:
            for each in names:
                self.core.forget(each, name)
        elif not group.orderly:
            node.pop.core(topic, group)
        else:
            # It was altered: it goes on in order, at the first message that is not done.
            for book in self.core.books_of(topic, name):
                if book.open:
                    first = min(book.open)
                    node.offsets.commit(topic, name, book.queue_id, first)
            for each in names:
                self.core.forget(each, name)


def _delivery(offset: int, checkpoint: Checkpoint) -> Delivery:
    return Delivery(
        offset,
        checkpoint.pop_ms,
        checkpoint.visible_ms,
        1,
        stored=checkpoint.place >= 0,
        counted=not checkpoint.suspended,
    )


async def open_journal(node: Node, stack: AsyncExitStack) -> None:
    """Give a broker its journal, before it serves. The timers must be there."""
    journal = JournalService(node)
    node.journal = journal
    node.timers.add_filter(journal.topic, journal.wants)
    node.clock_listeners.add(journal.writer.look_now)
    # Once when the last poll is answered, and once behind the last acknowledgement.
    node.pop.closers.append(journal.flush_all)
    stack.callback(journal.stop)
    await journal.open()
