"""Journal writer: appends the collected checkpoints and acks to the log, a few times a second.

Promises: a record that may be written (`PopJournal.take`) is in the log at most `FLUSH_S` later;
while the log refuses appends the writer retries at that interval, and the records stay in memory,
bounded by the messages in flight. A flush is one append for each of three kinds; a kind is appended
only if the log accepted all of the kind before, so that the record that ends a delivery never
precedes the record of what became of the message (`core.py`). The pop state learns what is stored,
so that the consumer offset may pass it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from ...front.metrics.families import Buckets
from ...proto.errors import WireError
from ...store.format.results import AppendResult, PutStatus
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from .checkpoint import Batch, Book, Checkpoint
from .revive_codec import ACK_TAG, BATCH_ACK_TAG, CK_TAG, ReviveWriter, revive_topic

if TYPE_CHECKING:
    from ...store.format.record import Message
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..metadata.system_topics import SystemTopics
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .core import PopJournal

logger = logging.getLogger(__name__)

#: Interval of flushes; what collects in between is one append.
FLUSH_S = 0.2
#: Records written or read in one turn of the loop: about 4 ms.
SLICE = 192
# RocketMQ's buckets.
_TOOK_BOUNDS_MS = (1, 10, 100, 1_000, 2_000, 3_000)
_NS_PER_MS = 1_000_000
_WRITTEN, _REFUSED = PutStatus.PUT_OK.value, PutStatus.SERVICE_NOT_AVAILABLE.value


class JournalWriter:
    """Writes one journal, on a leader."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        offsets: ConsumerOffsets,
        appender: InternalAppender,
        system_topics: SystemTopics,
        core: PopJournal,
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._store = store
        self._offsets = offsets
        self._appender = appender
        self._system_topics = system_topics
        self.core = core
        config = runtime.config
        self.topic = revive_topic(config.broker_cluster_name)
        self._revive_queues = config.revive_queue_num
        precision_ms = store.config.timer_precision_ms
        self._codec = ReviveWriter(config.broker_name, self.topic, precision_ms)
        #: The next flush; None while there is nothing to write.
        self.armed: asyncio.Handle | None = None
        self._last_refusal = ""
        #: Records, by tag, put status, topic and group.
        self.counts = Counter[tuple[str, str, str, str]]()
        self.took = Buckets(_TOOK_BOUNDS_MS)

    def arm(self) -> None:
        """Schedule a flush; `armed` is None."""
        self.armed = self._loop.call_later(FLUSH_S, self._flush)

    def flush_soon(self) -> None:
        """Flush in the next turn of the loop if a flush is scheduled."""
        if self.armed is not None:
            self.armed.cancel()
            self.armed = self._loop.call_soon(self._flush)

    def stop(self) -> None:
        """Cancel the scheduled flush."""
        if self.armed is not None:
            self.armed.cancel()
            self.armed = None

    def flush_all(self) -> None:
        """Write everything, also what may still wait."""
        while True:
            batch = self.core.take(self._clock.forward_ms(), SLICE, everything=True)
            if not batch.size or not self._write(batch):
                return

    def _flush(self) -> None:
        self.armed = None
        clock = self._clock
        begin_ns = clock.steady_ns()
        batch = self.core.take(clock.forward_ms(), SLICE)
        full = batch.size >= SLICE
        if batch.size and self._write(batch) and full:
            self.armed = self._loop.call_soon(self._flush)
        elif self.core.waiting:
            self.arm()
        self.took.add((clock.steady_ns() - begin_ns) / _NS_PER_MS)

    def _write(self, batch: Batch) -> bool:
        """Return whether the log accepted the whole batch; put the rest back."""
        now_ms = self._clock.forward_ms()
        self._codec.ahead_ms = now_ms - self._clock.wall_ms()
        try:
            batch.urgent = self._checkpoints(batch.urgent, now_ms)
            if not batch.urgent:
                batch.checkpoints = self._checkpoints(batch.checkpoints, now_ms)
            if not batch.urgent and not batch.checkpoints:
                batch.acks = self._acks(batch.acks, now_ms)
            reason = "the log accepted only some of the records" if batch.size else ""
        except WireError as error:
            reason = error.message
        if reason:
            self.core.put_back(batch)
            for checkpoint in batch.urgent + batch.checkpoints:
                self._count(CK_TAG, _REFUSED, checkpoint)
            for checkpoint in batch.acks:
                self._count(_ack_tag(checkpoint), _REFUSED, checkpoint)
            if reason != self._last_refusal:  # every retry fails with the same reason
                logger.warning("pop_journal.refused records=%d reason=%s", batch.size, reason)
        self._last_refusal = reason
        return not reason

    def _count(self, tag: str, status: str, checkpoint: Checkpoint) -> None:
        self.counts[tag, status, checkpoint.book.topic, checkpoint.book.group] += 1

    def _checkpoints(self, checkpoints: list[Checkpoint], now_ms: int) -> list[Checkpoint]:
        """Append; return the refused checkpoints. Raises WireError if all were refused."""
        codec, core = self._codec, self.core
        messages = [
            codec.checkpoint(checkpoint.record(), checkpoint.revive_queue, now_ms)
            for checkpoint in checkpoints
        ]
        timer_offset = self._store.writer.next_offset(TIMER_TOPIC, TIMER_QUEUE)
        refused: list[Checkpoint] = []
        stored: dict[int, tuple[Book, list[int]]] = {}
        results = self._append(messages)
        for checkpoint, message, result in zip(checkpoints, messages, results, strict=True):
            if result.status is not PutStatus.PUT_OK:
                refused.append(checkpoint)
                continue
            direct = message.topic != TIMER_TOPIC
            if not direct:
                timer_offset = result.queue_offset
            core.checkpoint_written(checkpoint, timer_offset, direct)
            self._count(CK_TAG, _WRITTEN, checkpoint)
            stored.setdefault(id(checkpoint.book), (checkpoint.book, []))[1].extend(
                checkpoint.offsets_of(checkpoint.open)
            )
        for book, offsets in stored.values():
            self._mark_stored(book, offsets)
        return refused

    def _acks(self, checkpoints: list[Checkpoint], now_ms: int) -> list[Checkpoint]:
        codec = self._codec
        messages = [
            codec.ack(
                checkpoint.key,
                checkpoint.offsets_of(checkpoint.acks),
                checkpoint.visible_ms,
                checkpoint.revive_queue,
                now_ms,
            )
            for checkpoint in checkpoints
        ]
        refused: list[Checkpoint] = []
        for checkpoint, result in zip(checkpoints, self._append(messages), strict=True):
            if result.status is PutStatus.PUT_OK:
                self._count(_ack_tag(checkpoint), _WRITTEN, checkpoint)
                self.core.acks_written(checkpoint)
            else:
                refused.append(checkpoint)
        return refused

    def _append(self, messages: list[Message]) -> list[AppendResult]:
        if not messages:
            return []
        host = self._appender.store_host
        for message in messages:
            message.born_host = message.store_host = host
        self._system_topics.ensure(TIMER_TOPIC)
        self._system_topics.ensure(self.topic, self._revive_queues)
        return self._appender.append_internal(messages)

    def _mark_stored(self, book: Book, offsets: list[int]) -> None:
        """Let the consumer offset pass what is in the log now."""
        core, queue = book.holder
        if core.queues.get(queue.key) is not queue:
            return  # the state was replaced
        before = queue.committed
        core.stored(queue, offsets)
        if queue.committed != before:
            self._offsets.commit(
                queue.topic, core.group, queue.queue_id, queue.committed, queue.next_read
            )


def _ack_tag(checkpoint: Checkpoint) -> str:
    return BATCH_ACK_TAG if checkpoint.acks & (checkpoint.acks - 1) else ACK_TAG
