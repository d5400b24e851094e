"""Op records: outcomes of transactions, written in batches, and the progress in both queues.

Promises: an outcome is in the op queue `transactionOpBatchInterval` after it was reported, or as
soon as `transactionOpMsgMaxSize` bytes are collected (docs/formats/broker-semantics.md, section
5.2); records that the log does not accept are kept and retried; the progress never passes an open
half message. Between an outcome and its op record the outcome is in memory only: after a crash a
commit is found in the log (`recovery.py`), and a rollback is asked for again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.results import PutStatus
from .core import BUFFER_MAX
from .records import GROUP, HALF_TOPIC, OP_TOPIC, QUEUE, op_message

if TYPE_CHECKING:
    import asyncio

    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .core import TransactionTable

logger = logging.getLogger(__name__)


class OpWriter:
    """Writes the outcomes in `TransactionTable.buffer`, on a leader."""

    def __init__(
        self,
        runtime: Runtime,
        offsets: ConsumerOffsets,
        appender: InternalAppender,
        table: TransactionTable,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._interval_ms = runtime.config.transaction_op_batch_interval
        self._max_size = runtime.config.transaction_op_msg_max_size
        self._offsets = offsets
        self._appender = appender
        self._table = table
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_failure = ""

    def check_capacity(self) -> None:
        """Raise WireError if too many outcomes wait for their op record."""
        if len(self._table.buffer) >= BUFFER_MAX:
            self.flush()
            if len(self._table.buffer) >= BUFFER_MAX:
                text = f"the log does not accept outcomes of transactions: {self._last_failure}"
                raise WireError(v2.INTERNAL_SERVER_ERROR, text)

    def ended(self) -> None:
        """Schedule the op record of an outcome that was added to the buffer."""
        if self._table.buffer_bytes >= self._max_size:
            self.flush()
        elif self._due_ms is None:
            self._arm()

    def clock_moved(self) -> None:
        """Write what is due by the changed wall clock."""
        if self._due_ms is not None and self._clock.wall_ms() >= self._due_ms:
            self.flush()

    def flush(self) -> None:
        """Write all outcomes in the buffer."""
        self.stop()
        table, appender = self._table, self._appender
        while table.buffer:
            batch = table.take_batch(self._max_size)
            message = op_message(batch, self._clock.wall_ms(), appender.store_host)
            try:
                result = appender.append(message)
            except WireError as error:
                self._not_written(error.message)
                return
            if result.status is not PutStatus.PUT_OK:
                self._not_written(result.status.value)
                return
            table.op_written(batch)
        self._last_failure = ""
        self.save_progress()

    def stop(self) -> None:
        """Stop the timer."""
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def save_progress(self) -> None:
        """Commit the offsets from which a restart reads: those of the oldest open half message."""
        offsets = self._offsets
        for topic, offset in zip((HALF_TOPIC, OP_TOPIC), self._table.bookmarks(), strict=True):
            if offset != (offsets.get(topic, GROUP, QUEUE) or 0):
                offsets.commit(topic, GROUP, QUEUE, offset)

    def _not_written(self, reason: str) -> None:
        if reason != self._last_failure:
            waiting = len(self._table.buffer)
            logger.warning("transaction.ops_wait waiting=%d error=%s", waiting, reason)
        self._last_failure = reason
        self._arm()

    def _arm(self) -> None:
        self._due_ms = self._clock.wall_ms() + self._interval_ms
        self._timer = self._loop.call_later(self._interval_ms / 1000, self.flush)
