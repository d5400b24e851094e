"""Timer persistence: flushes wheel, timer log and progress at intervals and at the end.

The saved progress never exceeds what the log's own flush has reached: slots and messages whose
copies a power loss could still take count as not delivered (`timer_core.py`). Flushes run on a
thread, one at a time, in the order on which recovery relies (`store/timer/store.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...store.format.disk import shortage
from ...store.timer.rules import TIMER_QUEUE, TIMER_TOPIC
from ...store.timer.store import TimerStore
from ..metadata.system_topics import PROGRESS_GROUP, READ_TIME_QUEUE
from .timer_core import TimerCore

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .timer_stats import TimerStats

logger = logging.getLogger(__name__)


class TimerSaver:
    """The flushes of one term of leadership; started and stopped once."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        offsets: ConsumerOffsets,
        timers: TimerStore,
        core: TimerCore,
        stats: TimerStats,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._offsets = offsets
        self._timers = timers
        self._core = core
        self._stats = stats
        self._period_s = store.config.timer_flush_interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._changes = core.changes
        self._trimmed_to = store.log_start
        #: Number of flushes that have succeeded.
        self.flushes = 0

    @property
    def busy(self) -> bool:
        """Whether a flush runs."""
        return self._flushing is not None

    def start(self) -> None:
        """Start the timer; the first flush is one interval away."""
        self._timer = self._loop.call_later(self._period_s, self._turn)

    async def stop(self) -> None:
        """Stop the timer and wait for a running flush."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await asyncio.wait((self._flushing,))

    def finish(self) -> None:
        """Flush for the last time, after the store was closed and its log flushed."""
        if self._stats.broken:
            return
        try:
            self._core.advance(self._clock.wall_ms(), last=True)
            read_ms, queue_offset = self._core.progress(self._store.flushed_offset)
            self._timers.flush(read_ms, queue_offset, self._clock.wall_ms())
        except OSError as error:
            logger.warning("timer.not_finished reason=%s", error)  # a restart repeats messages

    def _turn(self) -> None:
        self.start()  # first: the timer goes on even if this turn fails
        if self._stats.broken:
            # Nothing is saved any more; drop the core's records of unsaved deliveries.
            self._core.progress(self._store.flushed_offset)
        elif self._flushing is None:
            self._trim()
            if self._core.changes != self._changes:
                self._flush()

    def save(self) -> None:
        """Start a flush now; `busy` is False."""
        if not self._stats.broken:
            self._flush()

    def _flush(self) -> None:
        core = self._core
        self._changes = core.changes
        now_ms = self._clock.wall_ms()
        core.advance(now_ms)
        read_ms, queue_offset = core.progress(self._store.flushed_offset)
        if (read_ms, queue_offset) != (core.read_ms, core.queue_offset):
            self._changes = -1  # the next flush saves the rest
            self._store.flush_soon()
        self._offsets.commit(TIMER_TOPIC, PROGRESS_GROUP, TIMER_QUEUE, queue_offset)
        self._offsets.commit(TIMER_TOPIC, PROGRESS_GROUP, READ_TIME_QUEUE, read_ms)
        flush = self._timers.begin_flush(read_ms, queue_offset, now_ms)
        self._flushing = self._loop.run_in_executor(None, flush.run)
        self._flushing.add_done_callback(self._done)

    def _done(self, done: asyncio.Future[None]) -> None:
        self._flushing = None
        error = None if done.cancelled() else done.exception()
        if error is None:
            self.flushes += 1
            return
        self._changes = -1  # the collected changes are still unsaved
        if isinstance(error, OSError) and shortage(error) is not None:
            logger.warning("timer.flush_waits reason=%s", error)
            return
        # No retry: after a failed fsync pages may be lost. A restart goes on from the old progress
        # and repeats messages.
        self._stats.broken = True
        logger.error("timer.flush_failed error=%s", error)

    def _trim(self) -> None:
        """Delete timer log files whose messages retention has deleted."""
        log_start = self._store.log_start
        if log_start != self._trimmed_to:
            self._trimmed_to = log_start
            removed = self._timers.trim(log_start)
            if removed:
                logger.info("timer.log_trimmed files=%d log_start=%d", removed, log_start)
