"""Transaction reader: reads the half and the op queue into the table as records become visible.

The records of this leader are read the same way: a half message is in the table as soon as its
queue shows it, at the latest in the turn in which its sender is answered. Promises: one turn of the
loop reads for a few milliseconds; no record is read twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.record import Record, decode
from .core import HalfMessage
from .records import HALF_TOPIC, OP_TOPIC, QUEUE, half_properties, op_offsets

if TYPE_CHECKING:
    import asyncio

    from ...store.message_store import MessageStore
    from ..visible.dispatch_pump import DispatchPump
    from .core import TransactionTable
    from .stats import CountsFile

# Limits of one read of a queue, about 3 ms.
_READ_RECORDS = 128
_READ_BYTES = 1 << 20


def read_records(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int = _READ_RECORDS
) -> tuple[list[Record], int]:
    """Return records of a queue from `offset` on, and the next offset; the same one at the end."""
    result = store.get(topic, queue_id, offset, count, _READ_BYTES)
    return [decode(stored.data) for stored in result.records], max(offset, result.next_offset)


class TransactionReader:
    """Fills the table of one leader."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        pump: DispatchPump,
        table: TransactionTable,
        file: CountsFile,
    ) -> None:
        self._loop = loop
        self._store = store
        self._pump = pump
        self._table = table
        self._file = file
        #: Later records are this leader's own: no commit of theirs can be missing from the table.
        self._certain_from = store.log_end
        self._scheduled = False
        self._active = False

    def start(self) -> None:
        """Read new records as they arrive; call `read_some` for existing ones."""
        self._active = True
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._pump.watch(topic, self._arrived)

    def stop(self) -> None:
        """Stop to read."""
        self._active = False
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._pump.unwatch(topic)

    def read_some(self) -> bool:
        """Read a part of the new records; return True if there are more."""
        store, table = self._store, self._table
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
            self._file.changed()
        behind = table.first_half < store.max_offset(HALF_TOPIC, QUEUE) or (
            table.first_op < store.max_offset(OP_TOPIC, QUEUE)
        )
        return behind and (moved or table.first_half > before)

    def _arrived(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._scheduled = False
        if self._active and self.read_some():
            self._arrived()

    def _read_half(self, record: Record) -> None:
        properties = half_properties(record.properties)
        original = properties.copy_of < 0 and not properties.checks
        half = HalfMessage(
            record.queue_offset,
            record.physical_offset,
            record.size,
            properties.copy_of if properties.copy_of >= 0 else record.queue_offset,
            properties.topic,
            properties.queue_id,
            properties.key,
            record.store_timestamp_ms if original else self._since_ms(record, properties.copy_of),
            properties.checks,
            properties.immunity_ms,
            certain=record.physical_offset >= self._certain_from,
        )
        self._table.half(half, properties.copy_of)

    def _since_ms(self, copy: Record, copy_of: int) -> int:
        """Return when the original of a copy was stored; without it, the born time."""
        if copy_of >= 0:
            originals, _ = read_records(self._store, HALF_TOPIC, QUEUE, copy_of, 1)
            if originals and originals[0].queue_offset == copy_of:
                return originals[0].store_timestamp_ms
        return copy.born_timestamp_ms
