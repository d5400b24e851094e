"""The store's upkeep on the broker's loop: retention, a full disk, rates, and the archive watermark.

Promises: looks at the disk once a second and starts a round of retention every
`cleanResourceInterval`, both by the steady clock, and judges the age of files by the machine's own
wall, which no test moves (design, section 1). Deleting happens on the store's thread. Each replica
deletes for itself; the leader waits for the followers that are connected. Followers take the leader's
archive watermark from the frames that carry consumer offsets, so that it survives a failover.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ...proto import v1, v2
from ...proto.errors import WireError
from .queue_gc import QueueGc

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..node import Node

log = logging.getLogger(__name__)

_TICK_S = 1.0
# Between two turns of the index, each 2-3 ms: a fifth of the loop while it catches up.
_INDEX_PAUSE_S = 0.01
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class StoreMaintenance:
    """Made with the node; `start` begins the timer."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._retention = node.store.retention
        self._every_ns = node.store.config.clean_resource_interval * _NS_PER_MS
        self._round_ns = node.clock.steady_ns()
        self._unused = QueueGc(node)
        self._timer: asyncio.TimerHandle | None = None
        self._indexer: asyncio.TimerHandle | None = None
        self._marking = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None
        self._leaders_mark = 0
        self._sent: tuple[bytes, int, bytes] = (b"", 0, b"")
        self._retention.replica_end = self._replica_end
        node.store.meter.steady_ns = node.clock.steady_ns
        node.store.on_resumed = self._resumed

    def start(self) -> None:
        """Begin; the first round is one interval away."""
        period_s = min(_TICK_S, self._every_ns / _NS_PER_S)
        self._timer = self._node.loop.call_later(period_s, self._turn)

    def stop(self) -> None:
        """No more rounds; files under way are the store's to finish."""
        for timer in (self._timer, self._indexer):
            if timer is not None:
                timer.cancel()
        self._node.store.on_resumed = None

    def _turn(self) -> None:
        self.start()  # first, so that a turn that fails is not the last one
        self.tick()

    def tick(self) -> None:
        """Look at everything once."""
        node = self._node
        node.store.meter.sample()
        now_ns = node.clock.steady_ns()
        if now_ns - self._round_ns >= self._every_ns:
            self._round_ns = now_ns
            now_ms = node.clock.machine_ms()
            self._retention.step(now_ms, node.clock.hour_of(now_ms))
        else:
            self._retention.tick()
        self._unused.turn()
        self._follow_mark()
        if self._indexer is None:
            self._index()
        if node.store.dispatched_offset < node.pump.readable_limit():
            # What a full disk had stopped goes on, whoever waits for it.
            node.pump.schedule()

    def _index(self) -> None:
        """Let an index that is far behind catch up, a few milliseconds of the loop at a time."""
        self._indexer = None
        if self._node.store.index.turn():
            self._indexer = self._node.loop.call_later(_INDEX_PAUSE_S, self._index)

    def _resumed(self) -> None:
        with suppress(RuntimeError):  # the loop may be closing
            self._node.loop.call_soon_threadsafe(self._node.pump.schedule)

    def _replica_end(self) -> int | None:
        """What the slowest connected follower has; None on a follower and without any."""
        node = self._node
        if not node.leadership.is_leader:
            return None
        return min(
            (
                row.log_end
                for row in node.replication.members()
                if row.connected and row.role != "leader"
            ),
            default=None,
        )

    # -- the archive watermark -------------------------------------------------------------------

    def set_archive_watermark(
        self, request: v1.SetArchiveWatermarkRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.SetArchiveWatermarkResponse]:
        """Everything below is archived; durable when this answers."""
        store = self._node.store
        if request.watermark > store.log_end:
            text = f"{request.watermark} is above the log's end, {store.log_end}"
            raise WireError(v2.BAD_REQUEST, text)
        return self._node.loop.create_task(self._set(request))

    async def _set(self, request: v1.SetArchiveWatermarkRequest) -> v1.SetArchiveWatermarkResponse:
        try:
            await self._store_mark(request.watermark)
        except OSError as error:
            text = f"the watermark could not be stored: {error}"
            raise WireError(v2.INTERNAL_SERVER_ERROR, text) from error
        return v1.SetArchiveWatermarkResponse(
            code=v2.OK,
            message="OK",
            watermark=request.watermark,
            gate=self._retention.rules.archive_gate,
        )

    async def _store_mark(self, mark: int) -> None:
        """Off the loop, one after the other. Raises OSError."""
        async with self._marking:
            await asyncio.to_thread(self._retention.watermark.set, mark)
        log.info("archive.watermark offset=%d", mark)

    def get_archive_watermark(
        self, request: v1.GetArchiveWatermarkRequest, ctx: RequestContext
    ) -> v1.GetArchiveWatermarkResponse:
        """How far the log is archived, and what it holds."""
        store = self._node.store
        return v1.GetArchiveWatermarkResponse(
            code=v2.OK,
            message="OK",
            watermark=self._retention.watermark.value,
            gate=self._retention.rules.archive_gate,
            log_start=store.log_start,
            log_end=store.log_end,
        )

    def offsets_snapshot(self) -> bytes:
        """The consumer offsets for the followers, with the leader's watermark behind them."""
        offsets = self._node.offsets.snapshot()
        mark = self._retention.watermark.value if self._node.leadership.is_leader else 0
        if not mark:
            return offsets
        # The same object while nothing changed: whoever sends it compares.
        if self._sent[0] is not offsets or self._sent[1] != mark:
            behind = v1.Offsets(archive_watermark=mark).SerializeToString()
            self._sent = (offsets, mark, offsets + behind)
        return self._sent[2]

    def offsets_apply(self, payload: bytes) -> None:
        """What another replica says of offsets, and the leader of its watermark."""
        node = self._node
        try:
            # A leader has more of the log than whoever follows it.
            node.offsets.apply(payload, None if node.leadership.is_leader else node.store.log_end)
            mark = v1.Offsets.FromString(payload).archive_watermark
        except (ValueError, DecodeError) as error:
            log.warning("offsets.refused reason=%s", error)
            return
        if mark and not node.leadership.is_leader:
            self._leaders_mark = mark
            self._follow_mark()

    def lead(self) -> None:
        """Called on promotion, before the first write: from here on the watermark is this replica's to keep.
        What was archived of bytes that this log has lost says nothing of those that come in their place."""
        end = self._node.store.log_end
        mark = self._retention.watermark.value
        if self._adopting is not None:
            mark = max(
                mark, self._leaders_mark
            )  # it is on its way to the disk, and ours goes behind it
        self._leaders_mark = 0
        if mark > end:
            log.warning("archive.watermark_cut offset=%d log_end=%d", mark, end)
            self._retention.watermark.value = min(self._retention.watermark.value, end)
            self._adopting = self._node.loop.create_task(self._adopt(end))

    def _follow_mark(self) -> None:
        if self._node.leadership.is_leader:
            return
        mark = self._leaders_mark
        if self._adopting is None and mark not in (0, self._retention.watermark.value):
            self._adopting = self._node.loop.create_task(self._adopt(mark))

    async def _adopt(self, mark: int) -> None:
        try:
            await self._store_mark(mark)
        except OSError as error:
            # It counts by the old one until the next tick: segments stay longer.
            log.warning("archive.watermark_not_stored offset=%d error=%s", mark, error)
        finally:
            self._adopting = None
