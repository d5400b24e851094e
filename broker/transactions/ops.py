"""Op records: the ends of transactions, written in batches, and the progress that follows them.

Promises: an end stands in the op queue `transactionOpBatchInterval` after it was told, or as soon as
`transactionOpMsgMaxSize` bytes are together (broker semantics, section 5.2); what the log does not take
is kept and tried again; the progress in both queues never passes what is open. Between an end and its
op record the end lives in memory: after a crash a commit is found in the log (`recovery.py`),
and about a rollback the producer is asked again.
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

    from .service import Transactions

log = logging.getLogger(__name__)


class OpWriter:
    """Writes what `TransactionTable.buffer` holds, on a leader."""

    def __init__(self, transactions: Transactions) -> None:
        self._owner = transactions
        self._node = transactions.node
        self._due_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = ""

    def check_room(self) -> None:
        """Before an end is taken. Raises WireError when too many wait for their op record."""
        if len(self._owner.table.buffer) >= BUFFER_MAX:
            self.flush()
            if len(self._owner.table.buffer) >= BUFFER_MAX:
                text = f"the log takes no ends of transactions: {self._trouble}"
                raise WireError(v2.INTERNAL_SERVER_ERROR, text)

    def ended(self) -> None:
        """An end was added to the buffer."""
        if self._owner.table.buffer_bytes >= self._node.config.transaction_op_msg_max_size:
            self.flush()
        elif self._due_ms is None:
            self._arm()

    def clock_moved(self) -> None:
        """What is due now is written."""
        if self._due_ms is not None and self._node.clock.wall_ms() >= self._due_ms:
            self.flush()

    def flush(self) -> None:
        """Write everything."""
        self.stop()
        table, node = self._owner.table, self._node
        while table.buffer:
            batch = table.take_batch(node.config.transaction_op_msg_max_size)
            message = op_message(batch, node.clock.wall_ms(), node.sender.store_host)
            try:
                (result,) = node.sender.append_internal([message])
            except WireError as error:
                self._not_written(error.message)
                return
            if result.status is not PutStatus.PUT_OK:
                self._not_written(result.status.value)
                return
            table.op_written(batch)
        self._trouble = ""
        self.save_progress()

    def stop(self) -> None:
        """No timer runs any more."""
        self._due_ms = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def save_progress(self) -> None:
        """Let a restart begin where something is still open."""
        offsets = self._node.offsets
        for topic, offset in zip(
            (HALF_TOPIC, OP_TOPIC), self._owner.table.bookmarks(), strict=True
        ):
            if offset != (offsets.get(topic, GROUP, QUEUE) or 0):
                offsets.commit(topic, GROUP, QUEUE, offset)

    def _not_written(self, reason: str) -> None:
        if reason != self._trouble:
            waiting = len(self._owner.table.buffer)
            log.warning("transaction.ops_wait waiting=%d error=%s", waiting, reason)
        self._trouble = reason
        self._arm()

    def _arm(self) -> None:
        interval_ms = self._node.config.transaction_op_batch_interval
        self._due_ms = self._node.clock.wall_ms() + interval_ms
        self._timer = self._node.loop.call_later(interval_ms / 1000, self.flush)
