"""Periodic work on the store: retention, full disks, rates, and the archive watermark.

Promises: the disk is checked once a second and a retention round starts every
`cleanResourceInterval` (at the next check while disk pressure lasts), both by the steady clock; the
age of files is judged by the machine's own wall clock, which tests cannot move. Files are deleted
on the store's thread. Each replica deletes on its own; the leader keeps what its connected
followers still need. Followers take the leader's archive watermark, and from where on its messages
wait to be delivered, from the frames that carry consumer offsets: both hold after a failover.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ...proto import v1, v2
from ...proto.errors import WireError
from .queue_gc import QueueGc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...front.context import RequestContext
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from .traffic import TrafficRates

logger = logging.getLogger(__name__)

_TICK_S = 1.0
# Between two turns of the index, each 2-3 ms: a fifth of the loop while it catches up.
_INDEX_PAUSE_S = 0.01
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class StoreMaintenance:
    """The timer of the periodic work, and the handlers of the archive watermark."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        replication: Replication,
        leadership: Leadership,
        pump: DispatchPump,
        offsets: ConsumerOffsets,
        traffic: TrafficRates,
        waiting: Sequence[Callable[[], int | None]],
    ) -> None:
        """Each of `waiting` returns the log offset of the oldest record that waits to be delivered,
        if this replica leads; None if no record waits."""
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._replication = replication
        self._leadership = leadership
        self._pump = pump
        self._offsets = offsets
        self._traffic = traffic
        self._retention = store.retention
        self._round_interval_ns = store.config.clean_resource_interval * _NS_PER_MS
        self._round_ns = self._clock.steady_ns()
        self._queue_gc = QueueGc(store, metadata)
        self._timer: asyncio.TimerHandle | None = None
        self._index_timer: asyncio.TimerHandle | None = None
        self._watermark_lock = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None
        self._leader_watermark = 0
        self._waiting = waiting
        #: From where on messages of this leader, or of the one that it follows, may wait. None: the
        #: leader is of an older version. 0: not known yet, so retention takes nothing.
        self._waiting_from: int | None = 0
        #: The last snapshot: offsets, what is added, and both encoded.
        self._sent: tuple[bytes, bytes, bytes] = (b"", b"", b"")
        self._retention.replica_end = self._replica_end
        self._retention.waiting_from = lambda: self._waiting_from
        store.meter.steady_ns = self._clock.steady_ns

    def start(self) -> None:
        """Start the timer; the first retention round is one interval away."""
        period_s = min(_TICK_S, self._round_interval_ns / _NS_PER_S)
        self._timer = self._loop.call_later(period_s, self._turn)

    def stop(self) -> None:
        """Stop the timers; the store finishes files that are being deleted."""
        for timer in (self._timer, self._index_timer):
            if timer is not None:
                timer.cancel()

    def _turn(self) -> None:
        self.start()  # first: the timer goes on even if this turn fails
        self.tick()

    def tick(self) -> None:
        """Run one turn of the periodic work."""
        store, clock = self._store, self._clock
        store.meter.sample()
        self._traffic.sample()
        self._find_waiting()
        now_ns = clock.steady_ns()
        if now_ns - self._round_ns >= self._round_interval_ns or self._retention.is_due:
            self._round_ns = now_ns
            now_ms = clock.machine_ms()
            self._retention.step(now_ms, clock.hour_of(now_ms))
        else:
            self._retention.tick()
        self._queue_gc.turn()
        self._follow_watermark()
        if self._index_timer is None:
            self._index()
        if store.dispatched_offset < self._pump.readable_limit():
            # Dispatch that a full disk had stopped continues, even if no reader triggers it.
            self._pump.schedule()

    def _index(self) -> None:
        """Let an index that is far behind catch up, a few milliseconds of the loop at a time."""
        self._index_timer = None
        if self._store.index.turn():
            self._index_timer = self._loop.call_later(_INDEX_PAUSE_S, self._index)

    def _replica_end(self) -> int | None:
        """Return the log end of the slowest connected follower; None if there is none."""
        if not self._leadership.is_leader:
            return None
        return min(
            (
                row.log_end
                for row in self._replication.members()
                if row.connected and row.role != "leader"
            ),
            default=None,
        )

    def _find_waiting(self) -> None:
        """Find from where on records wait. A follower is told."""
        if self._leadership.is_leader:
            visible = self._store.dispatched_offset
            found = [each() for each in self._waiting]
            self._waiting_from = min([visible, *(each for each in found if each is not None)])

    # -- the archive watermark -------------------------------------------------------------------

    def set_archive_watermark(
        self, request: v1.SetArchiveWatermarkRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.SetArchiveWatermarkResponse]:
        """Handle SetArchiveWatermark; the watermark is durable when the future is done.

        Everything below the watermark is archived. Raises WireError.
        """
        if not request.HasField("watermark"):
            raise WireError(v2.BAD_REQUEST, "the request has no watermark")
        if request.watermark > self._store.log_end:
            text = f"{request.watermark} is above the log end, {self._store.log_end}"
            raise WireError(v2.BAD_REQUEST, text)
        return self._loop.create_task(self._set(request))

    async def _set(self, request: v1.SetArchiveWatermarkRequest) -> v1.SetArchiveWatermarkResponse:
        try:
            await self._store_watermark(request.watermark)
        except OSError as error:
            text = f"the watermark could not be stored: {error}"
            raise WireError(v2.INTERNAL_SERVER_ERROR, text) from error
        return v1.SetArchiveWatermarkResponse(
            code=v2.OK,
            message="OK",
            watermark=request.watermark,
            gate=self._retention.rules.archive_gate,
        )

    async def _store_watermark(self, watermark: int) -> None:
        """Store the watermark on a thread, one call at a time. Raises OSError."""
        async with self._watermark_lock:
            await asyncio.to_thread(self._retention.watermark.set, watermark)
        logger.info("archive.watermark offset=%d", watermark)

    def get_archive_watermark(
        self, request: v1.GetArchiveWatermarkRequest, ctx: RequestContext
    ) -> v1.GetArchiveWatermarkResponse:
        """Handle GetArchiveWatermark: the watermark and the range of the log."""
        return v1.GetArchiveWatermarkResponse(
            code=v2.OK,
            message="OK",
            watermark=self._retention.watermark.value,
            gate=self._retention.rules.archive_gate,
            log_start=self._store.log_start,
            log_end=self._store.log_end,
        )

    def offsets_snapshot(self) -> bytes:
        """Return the encoded consumer offsets for the followers; a leader adds its watermark, and
        from where on messages wait.

        Returns the same object until something changes, because the sender compares identities.
        """
        offsets = self._offsets.snapshot()
        if not self._leadership.is_leader:
            return offsets
        waiting_from = self._waiting_from or 0
        # The begin of its segment: it changes as seldom as retention acts on it.
        waiting_from -= waiting_from % self._store.config.mapped_file_size_commit_log
        watermark = self._retention.watermark.value
        added = v1.Offsets(archive_watermark=watermark, waiting_from=waiting_from)
        suffix = added.SerializeToString()
        if self._sent[0] is not offsets or self._sent[1] != suffix:
            self._sent = (offsets, suffix, offsets + suffix)
        return self._sent[2]

    def offsets_apply(self, payload: bytes) -> None:
        """Apply consumer offsets of another replica; a follower also adopts the watermark."""
        leads = self._leadership.is_leader
        try:
            # A leader has more of the log than its followers: its offsets need no check.
            self._offsets.apply(payload, None if leads else self._store.log_end)
            told = v1.Offsets.FromString(payload)
        except (ValueError, DecodeError) as error:
            logger.warning("offsets.refused reason=%s", error)
            return
        if leads:
            return
        self._waiting_from = told.waiting_from if told.HasField("waiting_from") else None
        if told.archive_watermark:
            self._leader_watermark = told.archive_watermark
            self._follow_watermark()

    def lead(self) -> None:
        """Take over the watermark on promotion, before the first write.

        A watermark above the log end is lowered to it: the archived bytes were lost with the old
        leader, and the records that replace them are not archived.
        """
        end = self._store.log_end
        watermark = self._retention.watermark.value
        if self._adopting is not None:
            # That write is already on its way to the disk; the write below is queued behind it.
            watermark = max(watermark, self._leader_watermark)
        self._leader_watermark = 0
        if watermark > end:
            logger.warning("archive.watermark_cut offset=%d log_end=%d", watermark, end)
            self._retention.watermark.value = min(self._retention.watermark.value, end)
            self._adopting = self._loop.create_task(self._adopt(end))

    def _follow_watermark(self) -> None:
        if self._leadership.is_leader:
            return
        watermark = self._leader_watermark
        if self._adopting is None and watermark not in (0, self._retention.watermark.value):
            self._adopting = self._loop.create_task(self._adopt(watermark))

    async def _adopt(self, watermark: int) -> None:
        try:
            await self._store_watermark(watermark)
        except OSError as error:
            # Retention uses the old watermark until the next tick: segments stay longer.
            logger.warning("archive.watermark_not_stored offset=%d error=%s", watermark, error)
        finally:
            self._adopting = None
