"""The fixed delay levels: messages of SCHEDULE_TOPIC_XXXX come to their topic when their time is over.

The clients of the gRPC protocol cannot ask for a level; such messages are in directories that Apache
wrote, or come from a message's property DELAY (`delayed.py`). The shell around `level_core.py`: it reads
the queue of a level from where `delayOffset.json` says, delivers what is due (store format, section 11.3)
and sleeps until the next is. On a leader alone. Promises: as `timer_service.py`; copies for the half topic
are dropped, as in Apache, and so are those whose topic was deleted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.config.delay_levels import DelayOffsets, deliver_ms, parse_levels
from ...store.format.errors import StoreError
from ...store.format.properties import DELAY_LEVELS_MS, SCHEDULE_TOPIC, property_value
from ...store.format.record import Message, decode_delivery
from ...store.format.results import AppendResult, PutStatus
from ..metadata.json_file import Saver
from ..metadata.system_topics import PROGRESS_GROUP
from .delivery_copy import copy_of, own_queue
from .level_core import DelayCore

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ...store.format.results import StoredRecord
    from ..node import Node

log = logging.getLogger(__name__)

_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_BATCH = 32
_BATCH_BYTES = 1 << 20
_SLICE_NS = 4_000_000
_RETRY_S = 0.5
_LOOK_S = 0.5
_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class DelayLevels:
    """Made with the node; `lead` begins."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.store.config
        self._levels_ms = parse_levels(config.message_delay_level)
        path = config.root / "config" / "delayOffset.json"
        self._offsets = DelayOffsets(path, node.clock.wall_ms)
        self._saver = Saver(path, self._render, config.flush_delay_offset_interval / 1000)
        self._core = DelayCore([])
        self._handle: asyncio.Handle | None = None
        self._running = False
        self._looked_ms = 0
        self._trouble = ""
        self.delivered = 0
        """Messages since the start."""
        node.pump.watch(SCHEDULE_TOPIC, self._arrived)
        node.clock_listeners.add(self._clock_moved)

    def lead(self) -> None:
        """This replica delivers from now on. Raises ConfigFileError."""
        store = self._node.store
        self._offsets.load()
        for queue_id in range(len(self._levels_ms)):
            known = self._node.offsets.get(SCHEDULE_TOPIC, PROGRESS_GROUP, queue_id)
            if known is not None and known > self._offsets.offset(queue_id + 1, 0, known):
                self._offsets.set(queue_id + 1, known)  # another replica led
        self._core = DelayCore(
            [
                self._offsets.offset(
                    queue_id + 1,
                    store.min_offset(SCHEDULE_TOPIC, queue_id),
                    store.max_offset(SCHEDULE_TOPIC, queue_id),
                )
                for queue_id in range(len(self._levels_ms))
            ]
        )
        self._running = True
        self._wake()

    def halt(self) -> None:
        """Deliver no more: the log is about to be closed."""
        self._running = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def follow(self) -> None:
        """Another replica delivers: how far this one was lies in the consumer offsets."""
        self.halt()
        self._note()
        self._saver.changed()

    async def stop(self) -> None:
        """Deliver no more; what may be saved is."""
        self.halt()
        self._note()
        await self._saver.close()

    def finish(self) -> None:
        """The store is closed: all that was delivered is on the disk."""
        self._note()
        try:
            self._offsets.save()
        except OSError as error:
            log.warning("delay.not_finished reason=%s", error)  # a restart repeats messages

    # -- turns --------------------------------------------------------------------------------

    def _arrived(self) -> None:
        for level in self._core.levels:
            level.exhausted = False
        self._wake()

    def _clock_moved(self) -> None:
        self._core.look_again()
        self._wake()

    def _wake(self) -> None:
        if self._running:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._node.loop.call_soon(self._turn)

    def _turn(self) -> None:
        node = self._node
        # First, so that a turn that fails is not the last one.
        self._handle = node.loop.call_later(_LOOK_S, self._turn)
        stop_ns = node.clock.steady_ns() + _SLICE_NS
        now_ms = node.clock.wall_ms()
        if now_ms < self._looked_ms:
            self._core.look_again()  # the clock was set back
        self._looked_ms = now_ms
        try:
            busy = self._look(stop_ns)
            pause_s = 0.0 if busy else self._pause_s()
            self._trouble = ""
        except (WireError, StoreError, OSError) as error:
            pause_s = _RETRY_S
            if str(error) != self._trouble:  # it comes back with every try
                self._trouble = str(error)
                log.warning("delay.waits reason=%s", error)
        self._handle.cancel()
        self._handle = node.loop.call_later(pause_s, self._turn) if pause_s >= 0 else None

    def _pause_s(self) -> float:
        """Until the next is due; below 0: nothing waits."""
        due_ms = self._core.next_due_ms()
        if due_ms is None:
            return -1
        return min(max(due_ms - self._node.clock.wall_ms(), 0) / 1000, _LOOK_S)

    def _look(self, stop_ns: int) -> bool:
        """Deliver what is due; True: there is more."""
        clock, core = self._node.clock, self._core
        while True:
            ready = core.ready(clock.wall_ms())
            if not ready:
                return False
            for index in ready:
                self._look_at(index)
                if clock.steady_ns() >= stop_ns:
                    return True

    def _look_at(self, index: int) -> None:
        """One batch of one level. Raises WireError: nothing can be appended now."""
        core = self._core
        offset = core.levels[index].offset
        found = self._node.store.get(SCHEDULE_TOPIC, index, offset, _BATCH, _BATCH_BYTES)
        now_ms = self._node.clock.wall_ms()
        due: list[StoredRecord] = []
        wait_ms = None
        for stored in found.records:
            due_ms = deliver_ms(self._due_ms(index, stored), now_ms, index + 1, self._levels_ms)
            if due_ms > now_ms:
                wait_ms = due_ms
                break
            due.append(stored)
        if due:
            self._deliver(index, due)
        elif wait_ms is not None:
            core.waits(index, found.records[0].queue_offset, wait_ms)
        elif found.next_offset > offset:
            core.delivered(index, found.next_offset, 0)  # retention took what lay there
        else:
            core.empty(index, offset)

    def _due_ms(self, index: int, stored: StoredRecord) -> int:
        if self._levels_ms == DELAY_LEVELS_MS:
            return stored.tags_code
        # The unit's code counts with Apache's own levels, whoever wrote it here.
        return decode_delivery(stored.data).store_timestamp_ms + self._levels_ms[index]

    def _deliver(self, index: int, due: list[StoredRecord]) -> None:
        messages = [self._message(stored) for stored in due]
        sent = [message for message in messages if message is not None]
        results = iter(self._node.sender.append_internal(sent))
        end, offset = 0, due[0].queue_offset
        for stored, message in zip(due, messages, strict=True):
            if message is not None:
                result = next(results)
                if result.status is PutStatus.PUT_OK:
                    end = result.end
                    self.delivered += 1
                elif not self._is_lost(result, message):
                    break  # the log took some of the batch, and then no more
            offset = stored.queue_offset + 1
        self._core.delivered(index, offset, end)
        self._saver.changed()

    def _is_lost(self, result: AppendResult, message: Message) -> bool:
        """Whether the store refuses the message for what it is, so that no later try can help."""
        if result.status not in _NEVER:
            return False
        log.error("delay.undeliverable topic=%s status=%s", message.topic, result.status.value)
        return True

    def _message(self, stored: StoredRecord) -> Message | None:
        """The message as it was sent; None: it has no place to go to."""
        record = decode_delivery(stored.data)
        topic = property_value(record.properties, b"REAL_TOPIC").decode("utf-8", "replace")
        known = self._node.metadata.topic(topic)
        if known is None or topic == _HALF_TOPIC:
            log.warning("delay.dropped topic=%s record=%d", topic, stored.physical_offset)
            return None
        return copy_of(record, topic, own_queue(record.properties, known))

    # -- progress -----------------------------------------------------------------------------

    def _note(self) -> None:
        """Take over what the log's flush has reached."""
        flushed = self._node.store.flushed_offset
        for index, offset in self._core.progress(flushed).items():
            self._offsets.set(index + 1, offset)
            self._node.offsets.commit(SCHEDULE_TOPIC, PROGRESS_GROUP, index, offset)

    def _render(self) -> str:
        self._note()
        if self._core.unsaved:
            self._node.store.flush_soon()
            self._saver.changed()
        return self._offsets.next_version()


def open_delay_levels(node: Node, stack: AsyncExitStack) -> None:
    """Make the service and begin on a leader; `stack` stops it. Raises ConfigFileError."""
    levels = node.levels = DelayLevels(node)
    node.closers.append(levels.halt)
    node.store.on_closed.append(levels.finish)
    stack.push_async_callback(levels.stop)
    if node.leadership.is_leader:
        levels.lead()
