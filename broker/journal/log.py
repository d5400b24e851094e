"""Pop state from the log: open, acknowledged and finished messages. Pure.

The same tables serve a leader, which fills them with what it writes (`core.py`), a broker after a
restart, and a follower that reads along (`read_checkpoint`, `read_ack`, in log order). The `mark`s
are the positions from which the log would have to be read again: the first unfinished checkpoint in
the timer topic, and the first copy of one in each queue of the revive topic. Both are saved as
consumer offsets at the same moment, so the timer mark also waits for a copy that is not passed.

Bounds: as many checkpoints as batches in flight, at most as many finished ones that wait behind an
open one, and `CONSUMED_MAX` acknowledged offsets per queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from .checkpoint import Book, Checkpoint
from .revive_codec import AckRecord, BatchKey, CheckpointRecord

#: Acknowledged offsets of one queue remembered from the log; others are delivered again.
CONSUMED_MAX = 100_000
SWEEP_SLACK = 512


class JournalState(Struct):
    """The messages in flight of all groups without order, and their state in the log."""

    #: By topic and group, then by queue id.
    books: dict[tuple[str, str], dict[int, Book]] = field(default_factory=dict)
    #: Messages in flight.
    open_count: int = 0
    #: The books with acknowledged offsets from the log, by id().
    consuming: dict[int, Book] = field(default_factory=dict)
    #: In order of their positions; some are finished.
    _written: deque[Checkpoint] = field(default_factory=deque)
    _written_limit: int = SWEEP_SLACK
    _to_ack: deque[Checkpoint] = field(default_factory=deque)
    #: Checkpoints read from the log, and those that reached the revive topic.
    _keys: dict[BatchKey, Checkpoint] = field(default_factory=dict)
    #: By queue of the revive topic: copies that must not be dropped yet.
    _copies: dict[int, deque[tuple[int, Checkpoint]]] = field(default_factory=dict)

    def book(self, topic: str, group: str, queue_id: int) -> Book:
        """Return the book of a queue; create it if missing."""
        books = self.books.get((topic, group))
        if books is None:
            books = self.books[topic, group] = {}
        book = books.get(queue_id)
        if book is None:
            book = books[queue_id] = Book(topic, group, queue_id)
        return book

    def books_of(self, topic: str, group: str) -> Iterable[Book]:
        """Return the books of a group on a topic."""
        return self.books.get((topic, group), {}).values()

    def all_books(self) -> Iterator[Book]:
        """Yield all books."""
        for books in self.books.values():
            yield from books.values()

    def _note_written(self, checkpoint: Checkpoint) -> None:
        written = self._written
        written.append(checkpoint)
        if len(written) > self._written_limit:
            # A batch that stays open long keeps the finished ones behind it. Sweeping whenever
            # their number has doubled bounds them by the open ones, at constant cost per
            # checkpoint.
            self._written = deque(one for one in written if not one.finished)
            self._written_limit = SWEEP_SLACK + 2 * len(self._written)

    # Records of the log: after a restart, and on a follower.

    def read_checkpoint(
        self,
        record: CheckpointRecord,
        revive_queue: int,
        timer_offset: int,
        stored: tuple[int, int],
    ) -> None:
        """Process a checkpoint, in log order; `timer_offset` as in `Checkpoint`, `stored` is its
        log offset and store time."""
        key = record.key
        known = self._keys.get(key)
        if known is not None:
            return  # a copy of a known one
        book = self.book(key.topic, key.group, key.queue_id)
        offsets = [key.start + distance for distance in record.distances]
        for at, offset in enumerate(offsets):
            if record.acked >> at & 1 and offset not in book.open:
                self._consume(book, offset, stored)
        opened = ((1 << len(offsets)) - 1) & ~record.acked
        if not opened:
            return
        checkpoint = Checkpoint(
            book,
            key.start,
            key.pop_ms,
            record.invisible_ms,
            offsets,
            opened,
            revive_queue,
            record.suspended,
            timer_offset,
            place=stored[0],
        )
        for offset in checkpoint.offsets_of(opened):
            old = book.open.get(offset)
            if old is None:
                self.open_count += 1
            else:
                # Delivered again: the ack of the old delivery follows, or the log ends before it.
                old.open &= ~old.bit(offset)
                old.acks |= old.bit(offset)
            book.consumed.pop(offset, None)
            book.open[offset] = checkpoint
        self._keys[key] = checkpoint
        self._note_written(checkpoint)

    def read_ack(self, record: AckRecord, stored_ms: int) -> None:
        """Process acks, in log order; acks of an unknown checkpoint belong to a finished one."""
        checkpoint = self._keys.get(record.key)
        if checkpoint is None:
            return
        book = checkpoint.book
        for offset in record.offsets:
            if offset not in checkpoint.offsets:
                continue
            bit = checkpoint.bit(offset)
            checkpoint.open &= ~bit
            checkpoint.acks &= ~bit
            if book.open.get(offset) is checkpoint:
                del book.open[offset]
                self.open_count -= 1
                self._consume(book, offset, (checkpoint.place, stored_ms))
        self._drop_if_finished(record.key, checkpoint)

    def read_passed(self, key: BatchKey) -> None:
        """Process a checkpoint that the reader of the revive topic (CometMQ or Apache's broker) has
        passed.
        """
        checkpoint = self._keys.get(key)
        if checkpoint is None:
            return
        for offset in checkpoint.offsets_of(checkpoint.open):
            if checkpoint.book.open.get(offset) is checkpoint:
                del checkpoint.book.open[offset]
                self.open_count -= 1
        checkpoint.open = checkpoint.acks = 0
        self._drop_if_finished(key, checkpoint)

    def read_everything(self) -> None:
        """Mark the log as read completely: a leader records its own writes from here on."""
        self._to_ack = deque(checkpoint for checkpoint in self._keys.values() if checkpoint.acks)
        self._keys = {
            checkpoint.key: checkpoint for checkpoint in self._keys.values() if checkpoint.surfaced
        }

    def prune(self, book: Book, committed: int, rewound_at: int = 0, since_ms: int = 0) -> None:
        """Drop acknowledged offsets that the consumer offset covers, whose delivery is in the log
        before the offset was set back (when this was its end), or acknowledged before `since_ms`.
        """
        book.consumed = {
            offset: stored
            for offset, stored in book.consumed.items()
            if offset >= committed and stored[0] >= rewound_at and stored[1] > since_ms
        }
        if not book.consumed:
            self.consuming.pop(id(book), None)

    def handed_over(self, book: Book) -> None:
        """Drop the acknowledged offsets that were handed over to the pop state."""
        book.consumed = {}
        self.consuming.pop(id(book), None)

    def _drop_if_finished(self, key: BatchKey, checkpoint: Checkpoint) -> None:
        if checkpoint.finished:
            self._keys.pop(key, None)

    def _consume(self, book: Book, offset: int, stored: tuple[int, int]) -> None:
        if len(book.consumed) >= CONSUMED_MAX:
            # The oldest: the consumer offset has passed it or will pass it soon.
            del book.consumed[next(iter(book.consumed))]
        book.consumed[offset] = stored
        self.consuming[id(book)] = book

    # Copies in the revive topic.

    def read_copy(self, record: CheckpointRecord, offset: int, revive_queue: int) -> None:
        """Process a checkpoint in the revive topic; call in order of the queue's offsets."""
        checkpoint = self._keys.get(record.key) or self._open_one(record)
        if checkpoint is not None and not checkpoint.finished:
            checkpoint.surfaced = True
            self._keys[record.key] = checkpoint
            self._copies.setdefault(revive_queue, deque()).append((offset, checkpoint))

    def _open_one(self, record: CheckpointRecord) -> Checkpoint | None:
        key = record.key
        book = self.books.get((key.topic, key.group), {}).get(key.queue_id)
        if book is None:
            return None
        for distance in record.distances:
            delivery = book.open.get(key.start + distance)
            if (
                delivery is not None
                and delivery.start == key.start
                and delivery.pop_ms == key.pop_ms
            ):
                return delivery
        return None

    # Positions before which the log need not be read again.

    def timer_mark(self, end: int) -> int:
        """Return the first queue offset of the timer topic, before `end`, that is unfinished."""
        written = self._written
        while written and written[0].finished:
            written.popleft()
        return min(written[0].timer_offset, end) if written else end

    def revive_mark(self, revive_queue: int, end: int) -> int:
        """Return the same for a queue of the revive topic that was read up to `end`."""
        copies = self._copies.get(revive_queue)
        while copies and not (copies[0][1].open or copies[0][1].acks):
            self._pass(copies.popleft()[1])
        return copies[0][0] if copies else end

    def first_due_ms(self, revive_queue: int) -> int | None:
        """Return when messages become visible again: those of the first checkpoint of a queue of
        the revive topic that is not finished; None if all are."""
        copies = self._copies.get(revive_queue)
        return copies[0][1].visible_ms if copies else None

    def _pass(self, checkpoint: Checkpoint) -> None:
        checkpoint.surfaced = False
        self._keys.pop(checkpoint.key, None)
