"""Codec of transaction records and transaction ids. Pure.

    RMQ_SYS_TRANS_HALF_TOPIC      half messages: prepared, not visible to consumers; and their
                                  copies, appended by the checks
    RMQ_SYS_TRANS_OP_HALF_TOPIC   op records: half queue offsets that are done, `12,15,`
    TRANS_CHECK_MAX_TIME_TOPIC    half messages without an outcome after the last check

The records are those that Apache writes, so that either broker can continue with the other's
directory (docs/formats/store-format.md, section 2.12; docs/formats/broker-semantics.md, sections
5.1-5.3). The properties of a half message are kept byte for byte in the records made from it, empty
ones included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.properties import encode_properties, property_value, whole_number
from ...store.format.record import Message
from ..messages.stored_properties import in_bucket_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...store.format.record import Record

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
PARKED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: The group under which the progress in both queues is stored.
GROUP = "CID_RMQ_SYS_TRANS"
QUEUE = 0

_REAL_TOPIC, _REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
_CHECKS = "TRANSACTION_CHECK_TIMES"
_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_COPY_OF = "TRAN_PREPARED_QUEUE_OFFSET"
_KEY = "UNIQ_KEY"
_BORN_HOST, _GROUP = b"__BORNHOST", b"PGROUP"
_TRANSACTION_ID = "__transactionId__"
_TRANSACTION_BITS = 0xC
_COMMITTED = 0x8
_OP_TAG = "d"
_ID_PARTS = 3


class TransactionId(Struct, frozen=True):
    """A transaction id: any node can find the transaction from it."""

    #: The broker group that stored the half message; empty in an id that is only a message id.
    broker: str
    #: Half queue offset of the half message as sent; -1 in a bare id.
    offset: int
    #: The client's message id.
    key: str

    def __str__(self) -> str:
        return f"{self.broker}:{self.offset}:{self.key}"


def parse_id(text: str) -> TransactionId:
    """Decode an id; any other text is a bare message id."""
    parts = text.split(":", _ID_PARTS - 1)
    if len(parts) == _ID_PARTS and parts[0] and parts[2]:
        offset = whole_number(parts[1])
        if offset is not None:
            return TransactionId(parts[0], offset, parts[2])
    return TransactionId("", -1, text)


class HalfProperties(Struct, frozen=True):
    """The properties of a record of the half queue."""

    topic: str
    queue_id: int
    key: str
    #: Number of checks before this copy was created.
    checks: int
    #: No check before this age; None: the broker's setting.
    immunity_ms: int | None
    #: Half queue offset of the message that this copies, if given; else -1.
    copy_of: int


def half_properties(properties: bytes) -> HalfProperties:
    """Read the properties of a record of the half queue. Missing numbers count as zero."""

    def text(name: str) -> str:
        return property_value(properties, name.encode()).decode("utf-8", "replace")

    def number(name: str, default: int) -> int:
        value = whole_number(text(name))
        return default if value is None else value

    immunity_s = number(_IMMUNITY, -1)
    return HalfProperties(
        text(_REAL_TOPIC),
        number(_REAL_QUEUE, 0),
        text(_KEY),
        number(_CHECKS, 0),
        immunity_s * 1000 if immunity_s >= 0 else None,
        number(_COPY_OF, -1),
    )


def producer_group(properties: bytes) -> str:
    """Return the producer group of a half message of a classic client; else empty.

    The gRPC protocol has no producer group; its messages name the host where they were born.
    """
    if property_value(properties, _BORN_HOST):
        return ""
    return property_value(properties, _GROUP).decode("utf-8", "replace")


def half_message(message: Message, properties: Mapping[str, str]) -> Message:
    """Return the half message stored instead of `message`; `properties` mark it as
    transactional.
    """
    everything = dict(properties)
    everything[_TRANSACTION_ID] = properties[_KEY]
    everything[_REAL_TOPIC] = message.topic
    everything[_REAL_QUEUE] = str(message.queue_id)
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=QUEUE,
        properties=encode_properties(in_bucket_order(everything)),
        sys_flag=message.sys_flag & ~_TRANSACTION_BITS,
    )


def committed(half: Record, queue_id: int, store_host: bytes) -> Message:
    """Return the message that consumers receive; `queue_id` is one of its topic's queues."""
    facts = half_properties(half.properties)
    return Message(
        facts.topic,
        queue_id,
        half.body,
        _without(half.properties, (_REAL_TOPIC, _REAL_QUEUE)),
        half.flag,
        half.sys_flag & ~_TRANSACTION_BITS | _COMMITTED,
        half.born_timestamp_ms,
        half.born_host,
        store_host,
        half.reconsume_times,
        half.physical_offset,
    )


def checked_copy(half: Record, checks: int, store_host: bytes) -> Message:
    """Return a copy of the half message for the end of its queue, with one check more."""
    return _copy(half, HALF_TOPIC, {_CHECKS: str(checks)}, store_host)


def immune_copy(half: Record, origin: int, store_host: bytes) -> Message:
    """Return a copy of a half message that is too young for a check; it names the first one."""
    return _copy(half, HALF_TOPIC, {_COPY_OF: str(origin)}, store_host)


def parked(half: Record, store_host: bytes) -> Message:
    """Return the half message for the parking topic, after its last check."""
    return _copy(half, PARKED_TOPIC, {}, store_host)


def op_message(offsets: Iterable[int], now_ms: int, host: bytes) -> Message:
    """Return the op record that names done half messages, in the order in which they were done."""
    return Message(
        OP_TOPIC,
        QUEUE,
        op_body(offsets),
        encode_properties({"WAIT": "true", "TAGS": _OP_TAG}),
        born_timestamp_ms=now_ms,
        born_host=host,
        store_host=host,
    )


def op_body(offsets: Iterable[int]) -> bytes:
    """Return decimal numbers, each followed by a comma."""
    return "".join([f"{offset}," for offset in offsets]).encode()


def op_offsets(body: bytes) -> list[int]:
    """Parse the numbers of an op record; anything else is skipped, as in Apache."""
    numbers = (whole_number(part.strip()) for part in body.split(b","))
    return [number for number in numbers if number is not None]


def _copy(half: Record, topic: str, more: Mapping[str, str], store_host: bytes) -> Message:
    properties = dict(_pairs(half.properties))
    properties.update(more)
    ordered = in_bucket_order(properties)
    return Message(
        topic,
        QUEUE,
        half.body,
        "".join([f"{name}\x01{value}\x02" for name, value in ordered.items()]).encode(
            "utf-8", "surrogateescape"
        ),
        half.flag,
        half.sys_flag & ~_TRANSACTION_BITS,
        half.born_timestamp_ms,
        half.born_host,
        store_host,
        half.reconsume_times,
    )


def _pairs(properties: bytes) -> list[tuple[str, str]]:
    """Return names and values unchanged: unlike the store's reader this keeps empty values."""
    text = properties.decode("utf-8", "surrogateescape")
    found = [part.partition("\x01") for part in text.split("\x02") if part]
    return [(name, value) for name, _, value in found]


def _without(properties: bytes, names: tuple[str, ...]) -> bytes:
    marks = tuple(f"{name}\x01".encode() for name in names)
    parts = [part for part in properties.split(b"\x02") if part and not part.startswith(marks)]
    return b"".join([part + b"\x02" for part in parts])
