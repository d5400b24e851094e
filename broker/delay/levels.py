"""Delay levels: delivers the messages of SCHEDULE_TOPIC_XXXX when the time of their level is over.

Clients of the gRPC protocol cannot choose a level; such messages come from directories that Apache
wrote, or have the property DELAY (`delayed.py`). The shell around `level_core.py`: it reads each
level's queue from the offset in `delayOffset.json`, delivers due messages (docs/formats/store-
format.md, section 11.3) and sleeps until the next one is due. It runs on the leader only. A message
waits for its delay at most, counted from the last start or the last time that the clock was set
back, whatever store time it has. What waits in a level that `messageDelayLevel` no longer has is
delivered after the delay of Apache's level of that number, or of its last one. Promises: those of
`timer_service.py`; messages for the half message topic are dropped, as in Apache, and so are those
of deleted topics, also if there is a new topic of the name."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.config.delay_levels import DelayOffsets, parse_levels
from ...store.format.errors import StoreError
from ...store.format.properties import DELAY_LEVELS_MS, SCHEDULE_TOPIC, property_value
from ...store.format.record import Message, decode_delivery
from ...store.format.results import AppendResult, PutStatus
from ..base.json_file import Saver
from ..metadata.incarnations import is_left_over
from ..metadata.system_topics import PROGRESS_GROUP
from .delivery_copy import copy_of, own_queue
from .level_core import DelayCore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ...store.format.results import StoredRecord
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from .timer_stats import TimerStats

logger = logging.getLogger(__name__)

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_BATCH = 32
_BATCH_BYTES = 1 << 20
_SLICE_NS = 4_000_000
_RETRY_S = 0.5
_POLL_S = 0.5
#: The clock was set back if it lost more than this; below, messages wait that much longer.
_STEP_MS = 100
_PERMANENT = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class DelayLevels:
    """Delivery of the fixed delay levels, on the leader."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        pump: DispatchPump,
        appender: InternalAppender,
        stats: TimerStats,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._appender = appender
        self._stats = stats
        config = store.config
        self._configured_ms = parse_levels(config.message_delay_level)
        #: Those, and levels with messages of an earlier configuration.
        self._levels_ms = self._configured_ms
        path = config.root / "config" / "delayOffset.json"
        self._progress = DelayOffsets(path, self._clock.wall_ms)
        self._saver = Saver(path, self._render, config.flush_delay_offset_interval / 1000)
        self._core = DelayCore([])
        self._handle: asyncio.Handle | None = None
        self._running = False
        #: How far the forward time is ahead of the wall time.
        self._ahead_ms = 0
        self._last_failure = ""
        #: Messages delivered since the start.
        self.delivered = 0
        pump.watch(SCHEDULE_TOPIC, self._arrived)
        runtime.clock_listeners.add(self._clock_moved)

    def lead(self) -> None:
        """Start to deliver. Raises ConfigFileError."""
        store = self._store
        self._progress.load(store.id)
        self._levels_ms = self._all_levels()
        for queue_id in range(len(self._levels_ms)):
            replicated = self._offsets.get(SCHEDULE_TOPIC, PROGRESS_GROUP, queue_id)
            if replicated is not None and replicated > self._progress.offset(
                queue_id + 1, 0, replicated
            ):
                self._progress.set(queue_id + 1, replicated)  # progress of another leader
        self._core = DelayCore([self._first(index) for index in range(len(self._levels_ms))])
        self._running = True
        self._bound()
        self._wake()

    def _all_levels(self) -> tuple[int, ...]:
        known, default = self._configured_ms, DELAY_LEVELS_MS
        queues = [queue for topic, queue in self._store.queues() if topic == SCHEDULE_TOPIC]
        former = range(len(known), max(queues, default=-1) + 1)
        return known + tuple(default[min(index, len(default) - 1)] for index in former)

    def _first(self, index: int) -> int:
        """Return where delivery of a level continues; count what retention took before."""
        first = self._store.min_offset(SCHEDULE_TOPIC, index)
        end = self._store.max_offset(SCHEDULE_TOPIC, index)
        saved = self._progress.offset(index + 1, 0, end)
        if 0 < saved < first:  # 0: unknown
            self._stats.gone += first - saved
        return max(saved, first)

    def halt(self) -> None:
        """Stop to deliver, before the log is closed."""
        self._running = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def follow(self) -> None:
        """Stop to lead; the consumer offsets hold the progress for the next leader."""
        self.halt()
        self._update_progress()
        self._saver.changed()

    async def stop(self) -> None:
        """Stop to deliver, and save the progress that is flushed."""
        self.halt()
        self._update_progress()
        await self._saver.close()

    def finish(self) -> None:
        """Save all progress, after the store was closed and its log flushed."""
        self._update_progress()
        try:
            self._progress.save()
        except OSError as error:
            logger.warning("delay.not_finished reason=%s", error)  # a restart repeats messages

    def oldest(self) -> int | None:
        """Return the log offset of the oldest message that waits; None without one, 0 if this
        replica does not lead."""
        if not self._running:
            return 0
        heads = (
            self._store.reader.position_from(SCHEDULE_TOPIC, index, level.offset)
            for index, level in enumerate(self._core.levels)
        )
        return min((head for head in heads if head is not None), default=None)

    def waiting(self, topics: Collection[str]) -> Iterator[int]:
        """Yield the number of waiting messages for these topics, or for retries of theirs, by
        batches of records: other work may run in between."""
        names = {topic.encode() for topic in topics}
        for index, level in enumerate(self._core.levels):
            offset = level.offset
            while (found := self._store.get(SCHEDULE_TOPIC, index, offset, 64)).records:
                yield sum(self._waits_for(names, stored) for stored in found.records)
                offset = found.next_offset

    def _waits_for(self, names: Collection[bytes], stored: StoredRecord) -> bool:
        """Return whether a message waits for one of the topics, or a retry of it; those of deleted
        topics of these names do not."""
        properties = decode_delivery(stored.data).properties
        topic = property_value(properties, b"REAL_TOPIC")
        if topic not in names and property_value(properties, b"RETRY_TOPIC") not in names:
            return False
        name = topic.decode("utf-8", "replace")
        return not is_left_over(self._metadata, name, properties, stored.physical_offset)

    # -- turns --------------------------------------------------------------------------------

    def _arrived(self) -> None:
        for level in self._core.levels:
            level.exhausted = False
        self._wake()

    def _clock_moved(self) -> None:
        self._core.look_again()
        self._wake()

    def _bound(self) -> None:
        """Bound the time of the present messages: the clock may be behind that of their store
        times."""
        clock = self._clock
        now_ms = clock.forward_ms()
        self._ahead_ms = now_ms - clock.wall_ms()
        for index, delay_ms in enumerate(self._levels_ms):
            end = self._store.max_offset(SCHEDULE_TOPIC, index)
            if end > self._core.levels[index].offset:
                self._core.bound(index, end, now_ms + delay_ms)
        self._core.look_again()

    def _wake(self) -> None:
        if self._running:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        clock, loop = self._clock, self._loop
        # First: turns go on even if this one fails.
        self._handle = loop.call_later(_POLL_S, self._turn)
        stop_ns = clock.steady_ns() + _SLICE_NS
        ahead_ms = clock.forward_ms() - clock.wall_ms()
        if ahead_ms > self._ahead_ms + _STEP_MS:
            self._bound()  # the clock was set back
        self._ahead_ms = min(self._ahead_ms, ahead_ms)  # less: it was set forward
        try:
            busy = self._deliver_due(stop_ns)
            pause_s = 0.0 if busy else self._pause_s()
            self._last_failure = ""
        except (WireError, StoreError, OSError) as error:
            pause_s = _RETRY_S
            if str(error) != self._last_failure:  # every retry fails with the same reason
                self._last_failure = str(error)
                logger.warning("delay.waits reason=%s", error)
        self._handle.cancel()
        self._handle = loop.call_later(pause_s, self._turn) if pause_s >= 0 else None

    def _pause_s(self) -> float:
        """Return the time until the next message is due; negative if no message waits."""
        due_ms = self._core.next_due_ms()
        if due_ms is None:
            return -1
        return min(max(due_ms - self._clock.wall_ms(), 0) / 1000, _POLL_S)

    def _deliver_due(self, stop_ns: int) -> bool:
        """Deliver due messages until `stop_ns`; return True if there are more."""
        clock, core = self._clock, self._core
        while True:
            ready = core.ready(clock.wall_ms())
            if not ready:
                return False
            for index in ready:
                self._deliver_batch(index)
                if clock.steady_ns() >= stop_ns:
                    return True

    def _deliver_batch(self, index: int) -> None:
        """Read and deliver one batch of a level. Raises WireError if the log accepts nothing."""
        core = self._core
        offset = core.levels[index].offset
        found = self._store.get(SCHEDULE_TOPIC, index, offset, _BATCH, _BATCH_BYTES)
        now_ms, forward_ms = self._clock.wall_ms(), self._clock.forward_ms()
        due: list[StoredRecord] = []
        wait_ms = None
        for stored in found.records:
            due_ms = self._due_ms(index, stored)
            latest_ms = core.latest_ms(index, stored.queue_offset)
            if latest_ms is not None:
                due_ms = min(due_ms, now_ms + latest_ms - forward_ms)
            if due_ms > now_ms:
                wait_ms = due_ms
                break
            due.append(stored)
        if due:
            self._append(index, due)
        elif wait_ms is not None:
            core.waits(index, found.records[0].queue_offset, wait_ms)
        elif found.next_offset > offset:
            self._stats.gone += found.next_offset - offset  # deleted by retention
            core.delivered(index, found.next_offset, 0)
        else:
            core.empty(index, offset)

    def _due_ms(self, index: int, stored: StoredRecord) -> int:
        if self._levels_ms[index] == DELAY_LEVELS_MS[min(index, len(DELAY_LEVELS_MS) - 1)]:
            return stored.tags_code
        # The unit's code is always computed with Apache's own levels.
        return decode_delivery(stored.data).store_timestamp_ms + self._levels_ms[index]

    def _append(self, index: int, due: list[StoredRecord]) -> None:
        messages = [self._message(stored) for stored in due]
        sent = [message for message in messages if message is not None]
        results = iter(self._appender.append_internal(sent))
        end, offset = 0, due[0].queue_offset
        for stored, message in zip(due, messages, strict=True):
            if message is not None:
                result = next(results)
                if result.status is PutStatus.PUT_OK:
                    end = result.end
                    self.delivered += 1
                elif not self._is_undeliverable(result, message):
                    break  # the log accepted only a part of the batch
            offset = stored.queue_offset + 1
        self._core.delivered(index, offset, end)
        self._saver.changed()

    def _is_undeliverable(self, result: AppendResult, message: Message) -> bool:
        """Return whether the store refuses the message itself, so that a retry cannot help."""
        if result.status not in _PERMANENT:
            return False
        logger.error("delay.undeliverable topic=%s status=%s", message.topic, result.status.value)
        return True

    def _message(self, stored: StoredRecord) -> Message | None:
        """Return the message as it was sent; None if its topic does not exist."""
        record = decode_delivery(stored.data)
        topic = property_value(record.properties, b"REAL_TOPIC").decode("utf-8", "replace")
        known = self._metadata.topic(topic)
        left_over = is_left_over(self._metadata, topic, record.properties, stored.physical_offset)
        if known is None or left_over or topic == _HALF_TOPIC:
            logger.warning("delay.dropped topic=%s record=%d", topic, stored.physical_offset)
            return None
        return copy_of(record, topic, own_queue(record.properties, known))

    # -- progress -----------------------------------------------------------------------------

    def _update_progress(self) -> None:
        """Advance the progress to what the log's flush has reached."""
        flushed = self._store.flushed_offset
        for index, offset in self._core.progress(flushed).items():
            self._progress.set(index + 1, offset)
            self._offsets.commit(SCHEDULE_TOPIC, PROGRESS_GROUP, index, offset)

    def _render(self) -> str:
        self._update_progress()
        if self._core.unsaved:
            self._store.flush_soon()
            self._saver.changed()
        return self._progress.next_version()
