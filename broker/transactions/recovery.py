"""Starting again: which half messages are open, and which were committed just before the end.

Both queues are read from the kept progress on. An end that was told in the last seconds before a crash
may be missing from the op queue (it is written in batches). A commit left its message in the log, and
is found there: the queue of the message is read from the half message's time on, and a committed record
that names the half message as its origin settles it. So nothing is committed twice because of a crash,
and nothing committed is asked about again. Promises: the loop is given up every few milliseconds;
until the end of it no half message of before is checked or ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...store.format.errors import StoreError
from ...store.format.record import Record, decode
from .core import HalfMessage, Outcome
from .reader import read_records
from .records import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE, facts_of

if TYPE_CHECKING:
    from .service import Transactions

log = logging.getLogger(__name__)

_SLICE_NS = 3_000_000
# With replication that waits for followers, the end of the log may take seconds to become visible.
_LOOK_AGAIN_S = 0.02
_RETRY_S = 0.5
_TRANSACTION_BITS, _COMMITTED = 0xC, 0x8


class Recovery:
    """One start of a leader."""

    def __init__(self, transactions: Transactions) -> None:
        self._owner = transactions
        self._node = transactions.node
        self.log_end = self._node.store.log_end
        """Records behind it are this leader's own."""
        self.finished = asyncio.Event()
        """Set when the table is complete, or when this replica leads no more."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; the owner is told at the end."""
        self._set_first()
        self._task = self._node.loop.create_task(self._run())
        self._task.add_done_callback(_raise_bugs)

    def cancel(self) -> None:
        """This replica leads no more."""
        self.finished.set()
        if self._task is not None:
            self._task.cancel()

    def _set_first(self) -> None:
        store, offsets, table = self._node.store, self._node.offsets, self._owner.table
        firsts = []
        for topic in (HALF_TOPIC, OP_TOPIC):
            kept = offsets.get(topic, GROUP, QUEUE) or 0
            # Not the end that is visible: what is below the progress is done with, seen or not.
            first, end = store.min_offset(topic, QUEUE), store.next_offset(topic, QUEUE)
            firsts.append(max(first, min(kept, end)))
        table.first_half, table.first_op = firsts

    async def _run(self) -> None:
        store = self._node.store
        while store.dispatched_offset < self.log_end:  # noqa: ASYNC110 - or until it leads no more
            await asyncio.sleep(_LOOK_AGAIN_S)
        await self._read()
        try:
            found = await self._find_committed()
        except (OSError, StoreError) as error:
            log.error("transaction.commits_not_found error=%s: some may be seen twice", error)
            found = 0
        for half in self._owner.table:
            half.certain = True
        self._owner.recovered()
        self.finished.set()
        log.info("transaction.recovered open=%d committed_before=%d", len(self._owner.table), found)
        self._owner.checks.table_complete()

    async def _read(self) -> None:
        """Both queues to their ends; what cannot be read now is tried again, because ends wait for it."""
        trouble = ""
        while True:
            try:
                while self._owner.reader.read_some():  # noqa: ASYNC110 - a part a turn
                    await asyncio.sleep(0)
                return
            except (OSError, StoreError) as error:
                if str(error) != trouble:  # it comes back with every try
                    log.warning("transaction.recovery_waits error=%s", error)
                trouble = str(error)
            await asyncio.sleep(_RETRY_S)

    async def _find_committed(self) -> int:
        """Settle the half messages whose commit lies in the log; returns how many."""
        by_queue: dict[tuple[str, int], list[HalfMessage]] = {}
        for half in self._owner.open_halves():
            topic = self._node.metadata.topic(half.topic)
            if not half.certain and topic is not None:
                by_queue.setdefault((half.topic, self._owner.queue_of(half, topic)), []).append(
                    half
                )
        found = 0
        for (topic_name, queue_id), halves in by_queue.items():
            found += await self._search(topic_name, queue_id, halves)
        return found

    async def _search(self, topic: str, queue_id: int, halves: list[HalfMessage]) -> int:
        places = {place: half for half in halves for place in (half.physical, *half.earlier)}
        # A copy whose original is gone is known by its message id alone.
        keys = {half.key: half for half in halves if half.checks}
        store, clock = self._node.store, self._node.clock
        offset = store.offset_by_time(topic, queue_id, self._begin_ms(halves, min(places)))
        found = 0
        slice_end = clock.steady_ns() + _SLICE_NS
        while True:
            records, following = read_records(store, topic, queue_id, offset)
            for record in records:
                half = _settled_by(record, places, keys)
                if half is not None and half.outcome is Outcome.OPEN:
                    self._owner.ended(half, Outcome.COMMITTED)
                    found += 1
            if following <= offset:
                return found
            offset = following
            if clock.steady_ns() >= slice_end:
                await asyncio.sleep(0)
                slice_end = clock.steady_ns() + _SLICE_NS

    def _begin_ms(self, halves: list[HalfMessage], first_place: int) -> int:
        """No commit of them is older than that."""
        since_ms = min(half.since_ms for half in halves)
        try:
            stored_ms = decode(self._node.store.record_at(first_place)).store_timestamp_ms
        except StoreError:
            return 0  # retention took it: look everywhere
        return min(since_ms, stored_ms)


def _settled_by(
    record: Record, places: dict[int, HalfMessage], keys: dict[str, HalfMessage]
) -> HalfMessage | None:
    if record.sys_flag & _TRANSACTION_BITS != _COMMITTED:
        return None
    half = places.get(record.prepared_transaction_offset)
    if half is not None:
        return half
    return keys.get(facts_of(record.properties).key) if keys else None


def _raise_bugs(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        task.get_loop().call_exception_handler(
            {"message": "transactions were not recovered", "exception": task.exception()}
        )
