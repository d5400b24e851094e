"""Makes the timers durable, once an interval and at the end.

What is written is the progress that the log's own flush has reached, never more: slots and messages whose
copies a power loss could still take count as not delivered (`timer_core.py`). The flush runs on a thread,
one at a time, in the order that the recovery relies on (`store/timer/store.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...store.format.disk import NO_SPACE
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ...store.timer.store import TimerStore
from ..metadata.system_topics import PROGRESS_GROUP, READ_TIME_QUEUE
from .timer_core import TimerCore

if TYPE_CHECKING:
    from ..node import Node
    from .timer_stats import TimerStats

log = logging.getLogger(__name__)


class TimerSaver:
    """Started and stopped once."""

    def __init__(self, node: Node, timers: TimerStore, core: TimerCore, stats: TimerStats) -> None:
        self._node = node
        self._timers = timers
        self._core = core
        self._stats = stats
        self._period_s = node.store.config.timer_flush_interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._changes = core.changes
        self._trimmed_to = node.store.log_start

    def start(self) -> None:
        """The first flush is one interval away."""
        self._timer = self._node.loop.call_later(self._period_s, self._turn)

    async def stop(self) -> None:
        """No more flushes; one that is under way ends."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await asyncio.wait((self._flushing,))

    def finish(self) -> None:
        """The last flush: the store is closed, its log on the disk."""
        if self._stats.broken:
            return
        node = self._node
        try:
            self._core.advance(node.clock.wall_ms(), last=True)
            read_ms, queue_offset = self._core.progress(node.store.flushed_offset)
            self._timers.flush(read_ms, queue_offset, node.clock.wall_ms())
        except OSError as error:
            log.warning("timer.not_finished reason=%s", error)  # a restart repeats messages

    def _turn(self) -> None:
        self.start()  # first, so that a turn that fails is not the last one
        if self._stats.broken:
            # Nothing is written any more; what the core remembers until it is safe must not pile up.
            self._core.progress(self._node.store.flushed_offset)
        elif self._flushing is None:
            self._trim()
            if self._core.changes != self._changes:
                self._flush()

    def _flush(self) -> None:
        node, core = self._node, self._core
        self._changes = core.changes
        now_ms = node.clock.wall_ms()
        core.advance(now_ms)
        read_ms, queue_offset = core.progress(node.store.flushed_offset)
        if (read_ms, queue_offset) != (core.read_ms, core.queue_offset):
            self._changes = -1  # the rest with the next flush
            node.store.flush_soon()
        node.offsets.commit(TIMER_TOPIC, PROGRESS_GROUP, TIMER_QUEUE, queue_offset)
        node.offsets.commit(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE, read_ms)
        flush = self._timers.begin_flush(read_ms, queue_offset, now_ms)
        self._flushing = node.loop.run_in_executor(None, flush.run)
        self._flushing.add_done_callback(self._done)

    def _done(self, done: asyncio.Future[None]) -> None:
        self._flushing = None
        error = None if done.cancelled() else done.exception()
        if error is None:
            return
        self._changes = -1  # what was gathered is still to be written
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            log.warning("timer.flush_waits reason=%s", error)
            return
        # Never a second try: pages may be lost. The old numbers on the disk repeat messages.
        self._stats.broken = True
        log.error("timer.flush_failed error=%s", error)

    def _trim(self) -> None:
        """Timer log files whose messages retention took."""
        log_start = self._node.store.log_start
        if log_start != self._trimmed_to:
            self._trimmed_to = log_start
            removed = self._timers.trim(log_start)
            if removed:
                log.info("timer.log_trimmed files=%d log_start=%d", removed, log_start)
