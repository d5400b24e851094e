"""The fast path of SendMessage: from the parsed request to the store's messages in one pass.

It accepts requests for one topic whose messages have no user property, delivery time, priority,
lite topic or transaction, and whose id, tag, keys, group, trace context and host are printable
ASCII without spaces. One test covers every check of `messages/validation.py` for such a message.
All other requests, valid or not, take the checked path. Promises: a request that is accepted here
is accepted there with the same records (a test compares both paths); fields are read once; no state
is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from ...proto import v2
from ...store.format.properties import java_hash
from ...store.format.record import Message
from ...store.format.results import AppendResult, PutStatus
from ..messages.convert import SYS_COMPRESSED
from ..messages.stored_properties import encode_plain, frame
from ..messages.validation import MAX_MESSAGE_GROUP_BYTES, MIXED
from ..messages.wire import TIMESTAMP_MAX_MS, TIMESTAMP_MIN_MS

if TYPE_CHECKING:
    from cometmq_native import codec

    from ..metadata.tables import Topic
    from ..trace.spans import RequestSpans
    from .answer import ReceiptExtras
    from .dedup_window import Reservation

#: Prefixes of topics that accept messages of any type.
EXEMPT_PREFIXES = ("%RETRY%", "%DLQ%")
#: Characters of id, tag, keys, group, trace and host together; below all of their own limits.
FAST_LENGTH_MAX = 4_096
_NORMAL, _FIFO, _TRANSACTION, _GZIP = v2.NORMAL, v2.FIFO, v2.TRANSACTION, v2.GZIP


class Prepared(Struct):
    """The messages of one request, ready for the log."""

    messages: list[Message]
    ids: list[bytes]
    topic: str
    #: Of the first.
    message_type: int
    #: Bytes of all bodies.
    size: int
    #: Additional receipt fields; parallel to `ids`.
    extras: list[ReceiptExtras | None] | None = None
    #: With deduplication: which of `ids` are stored (`messages` holds only these).
    reservation: Reservation | None = None
    #: Open OpenTelemetry spans.
    spans: RequestSpans | None = None

    def notify_stored(self, results: Sequence[AppendResult]) -> None:
        """Call `on_stored` of the extras with the append results, in the order of `messages`."""
        assert self.extras is not None
        fresh = self.extras
        if self.reservation is not None:
            fresh = [self.extras[index] for index in self.reservation.fresh]
        for extra, result in zip(fresh, results, strict=True):
            if extra is None or extra.on_stored is None:
                continue
            if result.status is PutStatus.PUT_OK:
                extra.transaction_id = extra.on_stored(result)


class Origin(Struct):
    """Properties shared by all messages of a broker."""

    region: str
    cluster: str
    max_body: int
    #: Stored with every record.
    store_host: bytes


class TopicTemplate(Struct):
    """A topic and the parts that all its records share."""

    topic: Topic
    #: Messages of the topic may take the fast path.
    fast: bool
    before: str
    #: See `stored_properties.frame`.
    between: str
    #: Number of requests: they are spread over the queues in turn. The client's choice of a queue
    #: is ignored, because the Python and Go clients always send queue 0.
    turn: int = 0
    #: The native crate's form, made on first use.
    native: codec.SendTemplate | None = None

    def next_queue(self) -> int:
        """Return the queue of the next request."""
        self.turn += 1
        return (self.turn - 1) % self.topic.write_queues


#: The sender's host as text, and packed as in a record.
_Peer: TypeAlias = tuple[str, bytes]


def make_template(topic: Topic, origin: Origin, turn: int) -> TopicTemplate:
    """Return the template of a topic; made again when the topic is altered."""
    fast = topic.writable and not topic.name.startswith(EXEMPT_PREFIXES)
    return TopicTemplate(topic, fast, *frame(origin.region, origin.cluster, topic.name), turn)


def prepare_fast(
    sent: Sequence[v2.Message], template: TopicTemplate, origin: Origin, peer: _Peer, now_ms: int
) -> Prepared | None:
    """Return the records of a request, or None if it must take the checked path.

    The first message is of the template's topic, whose name is legal.
    """
    if not template.fast:
        return None
    topic = template.topic
    name, expected = topic.name, topic.message_type
    turn = template.turn % topic.write_queues
    before, between, max_body = template.before, template.between, origin.max_body
    peer_host, born_host = peer
    ready = Prepared([], [], name, expected, 0)
    for message in sent:
        system = message.system_properties
        body = message.body
        message_id = system.message_id
        tag = system.tag
        key_list = system.keys
        keys = " ".join(key_list) if key_list else ""
        group = system.message_group
        trace = system.trace_context
        host = system.born_host
        text = f"{message_id}{tag}{keys}{group}{trace}{host}"
        size = len(body)
        message_type = _FIFO if group else _NORMAL
        if (
            expected not in (message_type, MIXED)
            or not 0 < size <= max_body
            or not message_id
            or not (text.isascii() and text.isprintable() and len(text) < FAST_LENGTH_MAX)
            or " " in text
            or (tag and "|" in tag)
            or (not keys and key_list)
            or len(group) > MAX_MESSAGE_GROUP_BYTES
            or system.message_type == _TRANSACTION
            or system.lite_topic
            or system.HasField("delivery_timestamp")
            or system.HasField("priority")
            or message.user_properties
            or (ready.size and message.topic.name != name)
        ):
            return None
        sharding, queue_id = "", turn
        if group:
            queue_id = fifo_queue(group, topic.write_queues)
            sharding = f"__SHARDINGKEY\x01{group}\x02"
        born = system.born_timestamp
        born_ms = born.seconds * 1000 + born.nanos // 1_000_000 or now_ms
        if not TIMESTAMP_MIN_MS <= born_ms <= TIMESTAMP_MAX_MS:
            return None
        # fmt: off
        properties = encode_plain(
            before, f"{sharding}UNIQ_KEY\x01{message_id}{between}", tag, trace, keys,
            born_host=host or peer_host, born_ms=born_ms,
        )
        ready.messages.append(Message(
            name, queue_id, body, properties, 0,
            SYS_COMPRESSED if system.body_encoding == _GZIP else 0,
            born_ms, born_host, origin.store_host,
        ))
        # fmt: on
        ready.ids.append(message_id.encode())
        ready.size += size
        if expected == MIXED and len(ready.ids) == 1:
            ready.message_type = message_type
    template.turn += 1
    return ready


@lru_cache(maxsize=8192)
def fifo_queue(message_group: str, queues: int) -> int:
    """Return the queue of a message group: Guava's consistent hash over Java's string hash.

    The server computes it, because the clients' hashes differ between languages
    (docs/formats/grpc-api.md, section 9.4; check values: broker-semantics.md, section 7).
    """
    state = java_hash(message_group) & 0xFFFFFFFFFFFFFFFF
    candidate = 0
    while True:
        state = (state * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if not 0 <= following < queues:
            return candidate
        candidate = following
