"""Transaction recovery: finds the open half messages, and those committed just before the last
stop.

Both queues are read from the saved progress on. An outcome that was reported in the last seconds
before a crash may be missing from the op queue, which is written in batches. But a commit left its
message in the log: the queue of the message is read from the half message's time on, and a
committed record that names the half message as its origin settles it. So a crash repeats no commit,
and no committed transaction is checked again. Promises: the loop is free every few milliseconds;
until the recovery is complete no earlier half message is checked or ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...store.format.errors import StoreError
from ...store.format.record import Record, decode
from .core import HalfMessage, Outcome
from .half_messages import queue_of
from .reader import read_records
from .records import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE, half_properties

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .half_messages import HalfMessages
    from .reader import TransactionReader

logger = logging.getLogger(__name__)

_SLICE_NS = 3_000_000
# With synchronous replication the end of the log may take seconds to become visible.
_POLL_S = 0.02
_RETRY_S = 0.5
_TRANSACTION_BITS, _COMMITTED = 0xC, 0x8


class Recovery:
    """The recovery of one promotion."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        halves: HalfMessages,
        reader: TransactionReader,
        on_complete: Callable[[], None],
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._halves = halves
        self._table = halves.table
        self._reader = reader
        self._on_complete = on_complete
        #: Later records are this leader's own.
        self.log_end = store.log_end
        #: Set when the table is complete, or when this replica stops to lead.
        self.finished = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the recovery; it calls `on_complete` at the end."""
        self._set_first()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(_raise_bugs)

    def cancel(self) -> None:
        """Stop: this replica leads no more."""
        self.finished.set()
        if self._task is not None:
            self._task.cancel()

    def _set_first(self) -> None:
        store, offsets, table = self._store, self._offsets, self._table
        firsts = []
        for topic in (HALF_TOPIC, OP_TOPIC):
            saved = offsets.get(topic, GROUP, QUEUE) or 0
            # `next_offset`, not the visible end: records below the progress are settled either way.
            first, end = store.min_offset(topic, QUEUE), store.writer.next_offset(topic, QUEUE)
            firsts.append(max(first, min(saved, end)))
        table.first_half, table.first_op = firsts

    async def _run(self) -> None:
        store, table = self._store, self._table
        while store.dispatched_offset < self.log_end:  # noqa: ASYNC110 - until cancelled
            await asyncio.sleep(_POLL_S)
        await self._read()
        try:
            committed = await self._find_committed()
        except (OSError, StoreError) as error:
            logger.error("transaction.commits_not_found error=%s: some may be seen twice", error)
            committed = 0
        for half in table:
            half.certain = True
        self.finished.set()
        logger.info("transaction.recovered open=%d committed_before=%d", len(table), committed)
        self._on_complete()

    async def _read(self) -> None:
        """Read both queues to their ends; a failed read is retried, because clients wait for it."""
        last_failure = ""
        while True:
            try:
                while self._reader.read_some():  # noqa: ASYNC110 - one part per turn
                    await asyncio.sleep(0)
                return
            except (OSError, StoreError) as error:
                if str(error) != last_failure:  # every retry fails with the same error: log it once
                    logger.warning("transaction.recovery_waits error=%s", error)
                last_failure = str(error)
            await asyncio.sleep(_RETRY_S)

    async def _find_committed(self) -> int:
        """End the half messages whose commit is in the log; return their number."""
        by_queue: dict[tuple[str, int], list[HalfMessage]] = {}
        for half in self._halves.open():
            topic = self._metadata.topic(half.topic)
            if not half.certain and topic is not None:
                by_queue.setdefault((half.topic, queue_of(half, topic)), []).append(half)
        committed = 0
        for (topic_name, queue_id), halves in by_queue.items():
            committed += await self._search(topic_name, queue_id, halves)
        return committed

    async def _search(self, topic: str, queue_id: int, halves: list[HalfMessage]) -> int:
        by_offset = {offset: half for half in halves for offset in (half.physical, *half.earlier)}
        # A copy whose original is gone can be found by its message id only.
        by_key = {half.key: half for half in halves if half.checks}
        store, clock = self._store, self._clock
        # By place; by time too, for a copy whose original is gone.
        offset = min(
            store.reader.offset_by_position(topic, queue_id, min(by_offset)),
            store.reader.offset_by_time(topic, queue_id, self._begin_ms(halves, min(by_offset))),
        )
        committed = 0
        slice_end = clock.steady_ns() + _SLICE_NS
        while True:
            records, following = read_records(store, topic, queue_id, offset)
            for record in records:
                half = _settled_by(record, by_offset, by_key)
                if half is not None and half.outcome is Outcome.OPEN:
                    self._halves.end(half, Outcome.COMMITTED)
                    committed += 1
            if following <= offset:
                return committed
            offset = following
            if clock.steady_ns() >= slice_end:
                await asyncio.sleep(0)
                slice_end = clock.steady_ns() + _SLICE_NS

    def _begin_ms(self, halves: list[HalfMessage], first_physical: int) -> int:
        """Return a time before the earliest possible commit of the half messages."""
        since_ms = min(half.since_ms for half in halves)
        try:
            stored_ms = decode(self._store.record_at(first_physical)).store_timestamp_ms
        except StoreError:
            return 0  # deleted by retention: search the whole queue
        return min(since_ms, stored_ms)


def _settled_by(
    record: Record, by_offset: dict[int, HalfMessage], by_key: dict[str, HalfMessage]
) -> HalfMessage | None:
    """Return the half message that a committed record settles."""
    if record.sys_flag & _TRANSACTION_BITS != _COMMITTED:
        return None
    half = by_offset.get(record.prepared_transaction_offset)
    if half is not None:
        return half
    return by_key.get(half_properties(record.properties).key) if by_key else None


def _raise_bugs(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": "the recovery of transactions failed", "exception": task.exception()}
        )
