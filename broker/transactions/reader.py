"""Reads the half and the op queue into the table, as their records become visible.

The records of this leader come this way, too: a half message is known as soon as its queue shows it,
which is before its sender is answered or in the same turn. Promises: a turn of the loop reads a few
milliseconds' worth; nothing is read twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.record import Record, decode
from .core import HalfMessage
from .records import HALF_TOPIC, OP_TOPIC, QUEUE, facts_of, op_offsets

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from .service import Transactions

# Records of a queue that one turn of the loop reads, about 3 ms; and their bytes.
_READ_RECORDS = 128
_READ_BYTES = 1 << 20


def read_records(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int = _READ_RECORDS
) -> tuple[list[Record], int]:
    """Records of a queue from `offset` on, and where to go on; the same offset at the end."""
    result = store.get(topic, queue_id, offset, count, _READ_BYTES)
    return [decode(stored.data) for stored in result.records], max(offset, result.next_offset)


class TransactionReader:
    """For the table of one leader."""

    def __init__(self, transactions: Transactions) -> None:
        self._owner = transactions
        self._node = transactions.node
        self._scheduled = False
        self._active = False

    def start(self) -> None:
        """Be told of new records; what is there already is read with `read_some`."""
        self._active = True
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._node.pump.watch(topic, self._arrived)

    def stop(self) -> None:
        """Read no more."""
        self._active = False
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._node.pump.unwatch(topic)

    def read_some(self) -> bool:
        """Read a part of what is new; True: there is more."""
        store, table = self._node.store, self._owner.table
        ops, following = read_records(store, OP_TOPIC, QUEUE, table.first_op)
        for record in ops:
            table.op(record.queue_offset, op_offsets(record.body))
        moved = following > table.first_op or bool(ops)
        table.first_op = max(table.first_op, following)
        before = table.first_half
        halves, following = read_records(store, HALF_TOPIC, QUEUE, before)
        for record in halves:
            self._read_half(record)
        table.first_half = max(table.first_half, following)
        if halves:
            self._owner.file.changed()
        behind = table.first_half < store.max_offset(HALF_TOPIC, QUEUE) or (
            table.first_op < store.max_offset(OP_TOPIC, QUEUE)
        )
        return behind and (moved or table.first_half > before)

    def _arrived(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._node.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._scheduled = False
        if self._active and self.read_some():
            self._arrived()

    def _read_half(self, record: Record) -> None:
        facts = facts_of(record.properties)
        original = facts.copy_of < 0 and not facts.checks
        recovery = self._owner.recovery
        half = HalfMessage(
            record.queue_offset,
            record.physical_offset,
            record.size,
            facts.copy_of if facts.copy_of >= 0 else record.queue_offset,
            facts.topic,
            facts.queue_id,
            facts.key,
            record.store_timestamp_ms if original else self._since_ms(record, facts.copy_of),
            facts.checks,
            facts.immunity_ms,
            certain=recovery is None or record.physical_offset >= recovery.log_end,
        )
        self._owner.table.half(half, facts.copy_of)

    def _since_ms(self, copy: Record, copy_of: int) -> int:
        """When the message was stored that this is a copy of; else when its producer says it was born."""
        if copy_of >= 0:
            originals, _ = read_records(self._node.store, HALF_TOPIC, QUEUE, copy_of, 1)
            if originals and originals[0].queue_offset == copy_of:
                return originals[0].store_timestamp_ms
        return copy.born_timestamp_ms
