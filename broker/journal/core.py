"""What of the pop state has to be in the log, and what may be forgotten. Pure.

A batch that was given out stays in memory for a moment (`stay_ms`): when all of it is acknowledged by
then, nothing is written. Else one checkpoint is written, and later one ack record for what was done
since, however many messages that is (broker semantics, sections 1.7 and 1.8). A change of the
invisible time makes a checkpoint of the one message, and the old one's bit is done.

Two promises make what was written safe after any prefix of it. The checkpoint of a change is written
before everything else that waits, so that a record which calls the old delivery done is never alone in
the log. And what is done is told from the log alone by joining checkpoints with the acks behind them.

Time is passed in, in wall milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .checkpoint import Batch, Book, Checkpoint
from .log import SWEEP_SLACK, JournalState
from .revive_codec import BATCH_MAX, AckRecord, CheckpointRecord


@dataclass(slots=True, kw_only=True)
class PopJournal(JournalState):
    """All groups without order of one broker."""

    stay_ms: int
    """So long a batch may stay unwritten,"""
    margin_ms: int
    """but never until less than this before its messages come back."""
    buffer_max: int
    """Batches that may wait unwritten; beyond it the oldest are written early."""
    _buffer: deque[Checkpoint] = field(default_factory=deque)
    _buffered_limit: int = SWEEP_SLACK
    _hurried: deque[Checkpoint] = field(default_factory=deque)
    """The newest first: what a newer one calls done may wait here, too."""

    # What happens on a leader.

    def delivered(
        self, book: Book, offsets: Sequence[int], pop_ms: int, invisible_ms: int, revive_queue: int
    ) -> None:
        """A batch was given out; what was out already is out anew."""
        if len(offsets) > BATCH_MAX:
            for first in range(0, len(offsets), BATCH_MAX):
                part = offsets[first : first + BATCH_MAX]
                self.delivered(book, part, pop_ms, invisible_ms, revive_queue)
            return
        hurried = invisible_ms < self.stay_ms + self.margin_ms
        opened = book.open
        if not opened.keys().isdisjoint(offsets):
            hurried = True
            for offset in offsets:
                self.settled(book, offset)
        count = len(offsets)
        checkpoint = Checkpoint(
            book, offsets[0], pop_ms, invisible_ms, offsets, (1 << count) - 1, revive_queue
        )
        opened.update(dict.fromkeys(offsets, checkpoint))
        self.open_count += count
        if hurried:
            self._hurried.appendleft(checkpoint)
        else:
            self._buffer.append(checkpoint)

    def settled(self, book: Book, offset: int) -> None:
        """A message is done for good."""
        checkpoint = book.open.pop(offset, None)
        if checkpoint is None:
            return
        self.open_count -= 1
        # Once a message: `_close` and `bit` written out for the common case.
        offsets = checkpoint.offsets
        at = offset - offsets[0]
        if checkpoint.place < 0 and at < len(offsets) and offsets[at] == offset:
            checkpoint.open ^= 1 << at
        else:
            self._close(checkpoint, checkpoint.bit(offset))

    def changed(
        self, book: Book, offset: int, pop_ms: int, invisible_ms: int, suspended: bool
    ) -> None:
        """A message is hidden anew: from now on it has a checkpoint of its own."""
        old = book.open.get(offset)
        revive_queue = 0 if old is None else old.revive_queue
        if old is None:
            self.open_count += 1
        else:
            self._close(old, old.bit(offset))
        checkpoint = book.open[offset] = Checkpoint(
            book, offset, pop_ms, max(invisible_ms, 0), (offset,), 1, revive_queue, suspended
        )
        self._hurried.appendleft(checkpoint)

    def forget(self, topic: str | None = None, group: str | None = None) -> None:
        """A topic or a group was deleted: nothing of it comes back."""
        for key in list(self.books):
            if topic in (None, key[0]) and group in (None, key[1]):
                for book in self.books.pop(key).values():
                    self.consuming.pop(id(book), None)
                    for offset in list(book.open):
                        self.settled(book, offset)

    def drop_empty(self) -> None:
        """Forget the books in which nothing stands."""
        for key, books in list(self.books.items()):
            for queue_id in [
                one for one, book in books.items() if not (book.open or book.consumed)
            ]:
                del books[queue_id]
            if not books:
                del self.books[key]

    def _close(self, checkpoint: Checkpoint, bit: int) -> None:
        checkpoint.open &= ~bit
        if checkpoint.place >= 0:
            if not checkpoint.acks:
                self._to_ack.append(checkpoint)
            checkpoint.acks |= bit

    # What is written.

    @property
    def waiting(self) -> bool:
        """Whether something may have to be written now or later."""
        return bool(self._hurried or self._to_ack or self._buffer)

    @property
    def buffered(self) -> int:
        """Batches that are not written yet."""
        return len(self._buffer) + len(self._hurried)

    def take(self, now_ms: int, limit: int, everything: bool = False) -> Batch:
        """What is to be written now, at most `limit` records; `put_back` or `written` follows."""
        batch = Batch()
        hurried = self._hurried
        while hurried and len(batch.hurried) < limit:
            first = hurried.popleft()
            if first.open:
                batch.hurried.append(first)
        limit -= len(batch.hurried)
        checkpoints, buffer = batch.checkpoints, self._buffer
        while buffer and len(checkpoints) < limit:
            first = buffer[0]
            if first.open and not (
                everything
                or len(buffer) > self.buffer_max
                # A clock that was set back must not keep anything out of the log.
                or not first.pop_ms <= now_ms < first.pop_ms + self.stay_ms
            ):
                break
            buffer.popleft()
            if first.open:
                checkpoints.append(first)
        limit -= len(checkpoints)
        while self._to_ack and not hurried and len(batch.acks) < limit:
            done = self._to_ack.popleft()
            if done.acks:
                batch.acks.append(done)
        return batch

    def put_back(self, batch: Batch) -> None:
        """The log took nothing of it."""
        # Before their own kind, and the ones that may not wait any longer with those that never may.
        self._hurried.extendleft(reversed(batch.hurried + batch.checkpoints))
        self._to_ack.extendleft(reversed(batch.acks))
        if self.buffered > self._buffered_limit:
            # While the log takes nothing, what is acknowledged must not pile up behind what is not.
            # Sweeping when they have doubled bounds them by what is open (`_note_written`).
            self._hurried = deque(one for one in self._hurried if one.open)
            self._buffer = deque(one for one in self._buffer if one.open)
            self._buffered_limit = SWEEP_SLACK + 2 * self.buffered

    def checkpoint_written(self, checkpoint: Checkpoint, place: int, direct: bool = False) -> None:
        """It lies in the timer topic at `place`; or, `direct`, in the revive topic, and then what
        follows lies in the timer topic at or behind `place`."""
        checkpoint.place = place
        self._note_written(checkpoint)
        if direct:
            checkpoint.surfaced = True
            self._keys[checkpoint.key] = checkpoint

    def acks_written(self, checkpoint: Checkpoint) -> None:
        """So do its acks."""
        checkpoint.acks = 0

    # What surfaces in the revive topic.

    def wants(self, record: CheckpointRecord | AckRecord) -> bool:
        """Whether a record whose time has come must go to the revive topic.

        A checkpoint that is done need not, nor need the acks of one that did not.
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
        """Entries of each table."""
        yield "open", self.open_count
        yield "buffered", self.buffered
        yield "written", len(self._written)
        yield "surfaced", sum(map(len, self._copies.values()))

    def validate(self) -> None:
        """The invariants."""
        opened = 0
        for book in self.all_books():
            opened += len(book.open)
            assert not book.open.keys() & book.consumed.keys(), book
            for offset, checkpoint in book.open.items():
                assert checkpoint.book is book
                assert checkpoint.open & checkpoint.bit(offset), checkpoint
                assert not checkpoint.acks & checkpoint.bit(offset), checkpoint
        assert opened == self.open_count, (opened, self.open_count)
        unwritten = {id(one) for one in (*self._buffer, *self._hurried)}
        written = {id(one) for one in self._written}
        for book in self.all_books():
            for checkpoint in book.open.values():
                where = written if checkpoint.place >= 0 else unwritten
                assert id(checkpoint) in where, checkpoint
        assert len(self._written) <= self._written_limit
        places = [one.place for one in self._written]
        assert places == sorted(places), places
