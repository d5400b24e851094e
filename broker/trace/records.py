"""Message trace records, as RocketMQ's tools read them from RMQ_SYS_TRACE_TOPIC. Pure.

The body of a trace message is a sequence of records, each ended by 0x02, its fields separated by
0x01; its KEYS are the ids and keys of the traced messages, by which it can be found
(docs/formats/broker-semantics.md, section 9.3):

    Pub         Pub, time, region, group, topic, id, tags, keys, store host, body bytes, cost, type,
                offset id, success, client host
    SubBefore   SubBefore, time, region, group, request id, id, retries, keys
    SubAfter    SubAfter, request id, id, cost, success, keys, context code, time, group

A batch is bounded in records and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: Records of one trace message: RocketMQ's own batch size.
RECORDS_MAX = 100
BYTES_MAX = 100_000
#: All keys must fit into the properties of one message.
KEYS_BYTES_MAX = 16_384
#: Ordinals of message types in Pub records.
NORMAL, HALF, _COMMIT, DELAY, ORDER = range(5)
#: Context code of a consumed message.
_CONSUMED = 0


def _row(*fields: object) -> str:
    return "\x01".join(str(each) for each in fields) + "\x02"


class Published(Struct):
    """The fields of a Pub record; `kind` is one of the ordinals."""

    time_ms: int
    region: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    kind: int
    offset_id: str
    client_host: str

    def encode(self) -> str:
        """Encode the record. The producer group is the topic, because the protocol has no producer
        group.
        """
        head = ("Pub", self.time_ms, self.region, self.topic, self.topic, self.message_id)
        rest = (self.tags, self.keys, self.store_host, self.body_bytes, 0, self.kind)
        return _row(*head, *rest, self.offset_id, "true", self.client_host)


class Delivered(Struct):
    """The fields of a SubBefore record."""

    time_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retries: int
    keys: str

    def encode(self) -> str:
        """Encode the record."""
        return _row(
            "SubBefore",
            self.time_ms,
            self.region,
            self.group,
            self.request_id,
            self.message_id,
            self.retries,
            self.keys,
        )


class Consumed(Struct):
    """The fields of a SubAfter record: acknowledged."""

    time_ms: int
    group: str
    request_id: str
    message_id: str
    cost_ms: int

    def encode(self) -> str:
        """Encode the record."""
        head = ("SubAfter", self.request_id, self.message_id, self.cost_ms, "true", "")
        return _row(*head, _CONSUMED, self.time_ms, self.group)


class TraceBatch(Struct):
    """Records for one trace message."""

    rows: list[str] = field(default_factory=list)
    #: In order of insertion, without duplicates.
    keys: dict[str, None] = field(default_factory=dict)
    size: int = 0
    keys_size: int = 0

    @property
    def full(self) -> bool:
        """Return whether the batch must be written before more is added."""
        return (
            len(self.rows) >= RECORDS_MAX
            or self.size >= BYTES_MAX
            or self.keys_size >= KEYS_BYTES_MAX
        )

    def add(self, row: str, keys: Iterable[str]) -> None:
        """Add a record with its keys; keys beyond the size limit are dropped."""
        self.rows.append(row)
        self.size += len(row)
        for key in keys:
            size = len(key.encode()) + 1
            if key and key not in self.keys and self.keys_size + size <= KEYS_BYTES_MAX:
                self.keys[key] = None
                self.keys_size += size

    def body(self) -> bytes:
        """Return the body of the trace message."""
        return "".join(self.rows).encode()
