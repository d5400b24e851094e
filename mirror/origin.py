"""What a copy keeps of its original, and how copies are recognised. Pure.

A copy has the body, flag, born time, tag, keys, message group, properties and unique id of its
original, and two more properties: `MIRROR_ORIGIN` (cluster/broker/queue/offset) and
`MIRROR_MESSAGE_ID` (the offset id, by which brokers find a record). The position in the source
makes copying repeatable: a mirror that starts again reads the end of the target's queue.
"""

from __future__ import annotations

from ..store.format.message_id import OffsetId
from ..store.format.properties import encode_properties, property_value, whole_number
from ..store.format.record import Record

ORIGIN, MESSAGE_ID = "MIRROR_ORIGIN", "MIRROR_MESSAGE_ID"
_UNIQUE = "UNIQ_KEY"
#: Compressed body, several tags, kind of compression. Bits of transactions and addresses are the
#: broker's.
_KEPT_BITS = 0x703
#: With these the target would delay the copy, or take it for the half of a transaction.
_DROPPED = (
    *("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_LEVEL"),
    *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
    *("TIMER_DEL_UNIQKEY", "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "REAL_TOPIC", "REAL_QID"),
    *("POP_CK", "POP_CK_OFFSET", "__CRC32#", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
)


def prefix_of(cluster: str, broker: str, queue_id: int) -> str:
    """Return the beginning of MIRROR_ORIGIN for a queue of the source."""
    return f"{cluster}/{broker}/{queue_id}/"


def origin_offset(properties: bytes, prefix: bytes) -> int | None:
    """Return the source offset of a copy from the queue of `prefix`; None for other messages."""
    value = property_value(properties, ORIGIN.encode())
    return whole_number(value.removeprefix(prefix)) if value.startswith(prefix) else None


def copied(record: Record, prefix: str) -> str:
    """Return the properties of the copy, as text; clear the record's flags that do not move."""
    properties = dict(record.properties_dict)
    for name in _DROPPED:
        properties.pop(name, None)
    offset_id = str(OffsetId(record.store_host, record.physical_offset))
    properties.setdefault(_UNIQUE, offset_id)
    properties[ORIGIN] = f"{prefix}{record.queue_offset}"
    properties[MESSAGE_ID] = offset_id
    record.sys_flag &= _KEPT_BITS
    return encode_properties(properties).decode()
