"""What the journal of pop state gathers goes to the log: a few times a second, in slices.

Promises: what may be written (`PopJournal.take`) is at most `FLUSH_S` later in the log, or is tried again
as often while the log takes nothing; it waits in memory then, as much as is in flight. A slice is one
append for each of three kinds, and one kind only follows when the log took all of the one before: a
record that calls a delivery done never comes before the one that says what became of the message
(`core.py`). Whoever has the pop state is told what is stored, so that the consumer offset may
pass it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.results import AppendResult, PutStatus
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ..metrics.families import Buckets
from .checkpoint import Batch, Book, Checkpoint
from .revive_codec import ACK_TAG, BATCH_ACK_TAG, CK_TAG, ReviveWriter, revive_topic

if TYPE_CHECKING:
    from ...store.format.record import Message
    from ..node import Node
    from .core import PopJournal

log = logging.getLogger(__name__)

FLUSH_S = 0.2
"""Between two looks at what is to be written; what gathers meanwhile is one append."""
SLICE = 192
"""Records written or read in one turn of the loop: about 4 ms."""
_TOOK_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100)
_NS_PER_MS = 1_000_000
_WRITTEN, _REFUSED = PutStatus.PUT_OK.value, PutStatus.SERVICE_NOT_AVAILABLE.value


class JournalWriter:
    """Writes for one journal, on a leader."""

    def __init__(self, node: Node, core: PopJournal) -> None:
        self._node = node
        self.core = core
        self.topic = revive_topic(node.config.broker_cluster_name)
        precision_ms = node.store.config.timer_precision_ms
        self._codec = ReviveWriter(node.config.broker_name, self.topic, precision_ms)
        self.armed: asyncio.Handle | None = None
        """The next look; None while there is nothing to write."""
        self._trouble = ""
        self.counts = Counter[tuple[str, str, int]]()
        """Records, by tag, what became of them, and queue of the revive topic."""
        self.took = Buckets(_TOOK_BOUNDS_MS)

    def arm(self) -> None:
        """There is something to write, now or later; `armed` is None."""
        self.armed = self._node.loop.call_later(FLUSH_S, self._flush)

    def look_now(self) -> None:
        """What had to wait may have waited long enough: the wall clock was moved."""
        if self.armed is not None:
            self.armed.cancel()
            self.armed = self._node.loop.call_soon(self._flush)

    def stop(self) -> None:
        """No more looks."""
        if self.armed is not None:
            self.armed.cancel()
            self.armed = None

    def flush_all(self) -> None:
        """Write everything, however young it is."""
        while True:
            batch = self.core.take(self._node.clock.wall_ms(), SLICE, everything=True)
            if not batch.size or not self._write(batch):
                return

    def _flush(self) -> None:
        self.armed = None
        clock = self._node.clock
        begin_ns = clock.steady_ns()
        batch = self.core.take(clock.wall_ms(), SLICE)
        full = batch.size >= SLICE
        if batch.size and self._write(batch) and full:
            self.armed = self._node.loop.call_soon(self._flush)
        elif self.core.waiting:
            self.arm()
        self.took.add((clock.steady_ns() - begin_ns) / _NS_PER_MS)

    def _write(self, batch: Batch) -> bool:
        """Whether the log took all of it; the rest goes back."""
        now_ms = self._node.clock.wall_ms()
        try:
            batch.hurried = self._checkpoints(batch.hurried, now_ms)
            if not batch.hurried:
                batch.checkpoints = self._checkpoints(batch.checkpoints, now_ms)
            if not batch.hurried and not batch.checkpoints:
                batch.acks = self._acks(batch.acks, now_ms)
            reason = "the log took a part of them" if batch.size else ""
        except WireError as error:
            reason = error.message
        if reason:
            self.core.put_back(batch)
            for one in batch.hurried + batch.checkpoints:
                self.counts[CK_TAG, _REFUSED, one.revive_queue] += 1
            for one in batch.acks:
                self.counts[_ack_tag(one), _REFUSED, one.revive_queue] += 1
            if reason != self._trouble:  # it comes back with every try
                log.warning("pop_journal.refused records=%d reason=%s", batch.size, reason)
        self._trouble = reason
        return not reason

    def _checkpoints(self, checkpoints: list[Checkpoint], now_ms: int) -> list[Checkpoint]:
        """Returns those that were not taken. Raises WireError: none was."""
        codec, core = self._codec, self.core
        messages = [codec.checkpoint(one.record(), one.revive_queue, now_ms) for one in checkpoints]
        place = self._node.store.next_offset(TIMER_TOPIC, TIMER_QUEUE)
        refused: list[Checkpoint] = []
        stored: dict[int, tuple[Book, list[int]]] = {}
        results = self._append(messages)
        for one, message, result in zip(checkpoints, messages, results, strict=True):
            if result.status is not PutStatus.PUT_OK:
                refused.append(one)
                continue
            direct = message.topic != TIMER_TOPIC
            if not direct:
                place = result.queue_offset
            core.checkpoint_written(one, place, direct)
            self.counts[CK_TAG, _WRITTEN, one.revive_queue] += 1
            stored.setdefault(id(one.book), (one.book, []))[1].extend(one.chosen(one.open))
        for book, offsets in stored.values():
            self._tell(book, offsets)
        return refused

    def _acks(self, checkpoints: list[Checkpoint], now_ms: int) -> list[Checkpoint]:
        codec = self._codec
        messages = [
            codec.ack(one.key, one.chosen(one.acks), one.visible_ms, one.revive_queue, now_ms)
            for one in checkpoints
        ]
        refused: list[Checkpoint] = []
        for one, result in zip(checkpoints, self._append(messages), strict=True):
            if result.status is PutStatus.PUT_OK:
                self.counts[_ack_tag(one), _WRITTEN, one.revive_queue] += 1
                self.core.acks_written(one)
            else:
                refused.append(one)
        return refused

    def _append(self, messages: list[Message]) -> list[AppendResult]:
        if not messages:
            return []
        node = self._node
        host = node.sender.store_host
        for message in messages:
            message.born_host = message.store_host = host
        node.system_topics.ensure(TIMER_TOPIC)
        node.system_topics.ensure(self.topic, node.config.revive_queue_num)
        return node.sender.append_internal(messages)

    def _tell(self, book: Book, offsets: list[int]) -> None:
        """The consumer offset may pass what is in the log now."""
        core, queue = book.holder
        if core.queues.get(queue.key) is not queue:
            return  # a state that nobody asks any more
        before = queue.committed
        core.stored(queue, offsets)
        if queue.committed != before:
            self._node.offsets.commit(
                queue.topic, core.group, queue.queue_id, queue.committed, queue.next_read
            )


def _ack_tag(checkpoint: Checkpoint) -> str:
    return BATCH_ACK_TAG if checkpoint.acks & (checkpoint.acks - 1) else ACK_TAG
