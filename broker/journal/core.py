"""Pop journal: which pop state must be written to the log, and which can be dropped. Pure.

A delivered batch stays in memory for `stay_ms`: if all its messages are acknowledged by then,
nothing is written. Otherwise one checkpoint is written, and later one ack record for the messages
done since (docs/formats/broker-semantics.md, sections 1.7 and 1.8). A change of the invisible time
creates a checkpoint for the one message, and its bit in the old checkpoint is done.

Two rules make every prefix of the written records safe. The checkpoint of a change is written
before everything else that waits, so that a record which ends the old delivery is never alone in
the log. And the set of done messages follows from the log alone, by joining checkpoints with later
acks.

Time is passed in, in wall milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from msgspec import field

from .checkpoint import Batch, Book, Checkpoint
from .log import SWEEP_SLACK, JournalState
from .revive_codec import BATCH_MAX, AckRecord, CheckpointRecord


class PopJournal(JournalState, kw_only=True):
    """All groups without order of one broker."""

    #: A batch may stay unwritten for this long,
    stay_ms: int
    #: but only until this long before its messages become visible again.
    margin_ms: int
    #: Batches that may wait unwritten; beyond this the oldest are written early.
    buffer_max: int
    _buffer: deque[Checkpoint] = field(default_factory=deque)
    _buffered_limit: int = SWEEP_SLACK
    #: The newest first: an older batch that a newer one ends may be waiting here too.
    _urgent: deque[Checkpoint] = field(default_factory=deque)

    # Events of a leader.

    def delivered(
        self, book: Book, offsets: Sequence[int], pop_ms: int, invisible_ms: int, revive_queue: int
    ) -> None:
        """Record a delivered batch; messages that were in flight already are delivered again."""
        if len(offsets) > BATCH_MAX:
            for first in range(0, len(offsets), BATCH_MAX):
                part = offsets[first : first + BATCH_MAX]
                self.delivered(book, part, pop_ms, invisible_ms, revive_queue)
            return
        urgent = invisible_ms < self.stay_ms + self.margin_ms
        opened = book.open
        if not opened.keys().isdisjoint(offsets):
            urgent = True
            for offset in offsets:
                self.settled(book, offset)
        count = len(offsets)
        checkpoint = Checkpoint(
            book, offsets[0], pop_ms, invisible_ms, offsets, (1 << count) - 1, revive_queue
        )
        opened.update(dict.fromkeys(offsets, checkpoint))
        self.open_count += count
        if urgent:
            self._urgent.appendleft(checkpoint)
        else:
            self._buffer.append(checkpoint)

    def settled(self, book: Book, offset: int) -> None:
        """Record that a message is done."""
        checkpoint = book.open.pop(offset, None)
        if checkpoint is None:
            return
        self.open_count -= 1
        # Runs once per message: `_close` and `bit` are inlined for the common case.
        offsets = checkpoint.offsets
        at = offset - offsets[0]
        if checkpoint.timer_offset < 0 and at < len(offsets) and offsets[at] == offset:
            checkpoint.open ^= 1 << at
        else:
            self._close(checkpoint, checkpoint.bit(offset))

    def changed(
        self, book: Book, offset: int, pop_ms: int, invisible_ms: int, suspended: bool
    ) -> None:
        """Record a new invisible time of a message: it gets a checkpoint of its own."""
        old = book.open.get(offset)
        revive_queue = 0 if old is None else old.revive_queue
        if old is None:
            self.open_count += 1
        else:
            self._close(old, old.bit(offset))
        checkpoint = book.open[offset] = Checkpoint(
            book, offset, pop_ms, max(invisible_ms, 0), (offset,), 1, revive_queue, suspended
        )
        self._urgent.appendleft(checkpoint)

    def forget(self, topic: str | None = None, group: str | None = None) -> None:
        """Drop the state of a deleted topic or group: none of its messages come back."""
        for key in list(self.books):
            if topic in (None, key[0]) and group in (None, key[1]):
                for book in self.books.pop(key).values():
                    self.consuming.pop(id(book), None)
                    for offset in list(book.open):
                        self.settled(book, offset)

    def drop_empty(self) -> None:
        """Drop books without entries."""
        for key, books in list(self.books.items()):
            empty = [number for number, book in books.items() if not (book.open or book.consumed)]
            for queue_id in empty:
                del books[queue_id]
            if not books:
                del self.books[key]

    def _close(self, checkpoint: Checkpoint, bit: int) -> None:
        checkpoint.open &= ~bit
        if checkpoint.timer_offset >= 0:
            if not checkpoint.acks:
                self._to_ack.append(checkpoint)
            checkpoint.acks |= bit

    # Writing.

    @property
    def waiting(self) -> bool:
        """Return whether something may have to be written now or later."""
        return bool(self._urgent or self._to_ack or self._buffer)

    @property
    def buffered(self) -> int:
        """Return the number of unwritten batches."""
        return len(self._buffer) + len(self._urgent)

    def take(self, now_ms: int, limit: int, everything: bool = False) -> Batch:
        """Return what must be written now, at most `limit` records; `put_back` or `written` must
        follow.
        """
        batch = Batch()
        urgent = self._urgent
        while urgent and len(batch.urgent) < limit:
            first = urgent.popleft()
            if first.open:
                batch.urgent.append(first)
        limit -= len(batch.urgent)
        checkpoints, buffer = batch.checkpoints, self._buffer
        while buffer and len(checkpoints) < limit:
            first = buffer[0]
            if first.open and not (
                everything
                or len(buffer) > self.buffer_max
                # A clock that was set back must not delay writes.
                or not first.pop_ms <= now_ms < first.pop_ms + self.stay_ms
            ):
                break
            buffer.popleft()
            if first.open:
                checkpoints.append(first)
        limit -= len(checkpoints)
        while self._to_ack and not urgent and len(batch.acks) < limit:
            done = self._to_ack.popleft()
            if done.acks:
                batch.acks.append(done)
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return a batch whose append failed."""
        # Before their own kind, and overdue ones together with those that never wait.
        self._urgent.extendleft(reversed(batch.urgent + batch.checkpoints))
        self._to_ack.extendleft(reversed(batch.acks))
        if self.buffered > self._buffered_limit:
            # While the log is not writable, acknowledged batches must not accumulate behind open
            # ones. Sweeping whenever their number has doubled bounds them by the open ones
            # (`_note_written`).
            self._urgent = deque(checkpoint for checkpoint in self._urgent if checkpoint.open)
            self._buffer = deque(checkpoint for checkpoint in self._buffer if checkpoint.open)
            self._buffered_limit = SWEEP_SLACK + 2 * self.buffered

    def checkpoint_written(
        self, checkpoint: Checkpoint, timer_offset: int, direct: bool = False
    ) -> None:
        """Record that a checkpoint is in the timer topic at `timer_offset`; or, `direct`, in the
        revive topic, and its later records in the timer topic at or after `timer_offset`.
        """
        checkpoint.timer_offset = timer_offset
        self._note_written(checkpoint)
        if direct:
            checkpoint.surfaced = True
            self._keys[checkpoint.key] = checkpoint

    def acks_written(self, checkpoint: Checkpoint) -> None:
        """Record that the checkpoint's acks are written."""
        checkpoint.acks = 0

    # Records that reach the revive topic.

    def wants(self, record: CheckpointRecord | AckRecord) -> bool:
        """Return whether a due record must go to the revive topic.

        A finished checkpoint need not, nor the acks of a checkpoint that did not.
        """
        if isinstance(record, AckRecord):
            return record.key in self._keys
        checkpoint = self._keys.get(record.key) or self._open_one(record)
        if checkpoint is None or not checkpoint.open:
            return False
        checkpoint.surfaced = True
        self._keys[record.key] = checkpoint
        return True

    # For tests, metrics and simulations.

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the number of entries of each table."""
        yield "open", self.open_count
        yield "buffered", self.buffered
        yield "written", len(self._written)
        yield "surfaced", sum(map(len, self._copies.values()))

    def validate(self) -> None:
        """Check the invariants."""
        opened = 0
        for book in self.all_books():
            opened += len(book.open)
            assert not book.open.keys() & book.consumed.keys(), book
            for offset, checkpoint in book.open.items():
                assert checkpoint.book is book
                assert checkpoint.open & checkpoint.bit(offset), checkpoint
                assert not checkpoint.acks & checkpoint.bit(offset), checkpoint
        assert opened == self.open_count, (opened, self.open_count)
        unwritten = {id(one) for one in (*self._buffer, *self._urgent)}
        written = {id(one) for one in self._written}
        for book in self.all_books():
            for checkpoint in book.open.values():
                where = written if checkpoint.timer_offset >= 0 else unwritten
                assert id(checkpoint) in where, checkpoint
        assert len(self._written) <= self._written_limit
        offsets = [one.timer_offset for one in self._written]
        assert offsets == sorted(offsets), offsets
