"""The common SendMessage, from the parsed request to the store's messages in one pass.

Common is: one topic, no property of the user, no delivery time, priority, lite topic or transaction, and
id, tag, key, group, trace context and host of printable ASCII without spaces. Such a message passes every
check of `validation.py` at a glance. Anything else, valid or not, is left to the ordered checks there.
Promises: what is accepted here is what they would accept, with the same record (a test compares both
ways); fields are read once; nothing is kept. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from ...proto import v2
from ...store.format.properties import java_hash
from ...store.format.record import Message
from ...store.format.results import AppendResult, PutStatus
from ..messages.convert import SYS_COMPRESSED
from ..messages.stored_properties import encode_plain, frame
from ..messages.validation import MAX_MESSAGE_GROUP_BYTES, MIXED

if TYPE_CHECKING:
    from ..metadata.tables import Topic
    from .answer import Special
    from .dedup_window import Claim

EXEMPT_PREFIXES = ("%RETRY%", "%DLQ%")
"""Topics whose messages may be of any type."""
PLAIN_LENGTH = 4_096
"""Characters of id, tag, key, group, trace and host up to which they need not be counted."""
_NORMAL, _FIFO, _TRANSACTION, _GZIP = v2.NORMAL, v2.FIFO, v2.TRANSACTION, v2.GZIP


@dataclass(slots=True)
class Prepared:
    """The messages of one request, ready for the log."""

    messages: list[Message]
    ids: list[bytes]
    topic: str
    message_type: int
    """Of the first."""
    size: int
    """Bytes of all bodies."""
    specials: list[Special | None] | None = None
    """What the receipts of special messages say; parallel to `ids`."""
    claim: Claim | None = None
    """With deduplication: which of `ids` are stored (`messages` holds only these)."""

    def note(self, results: Sequence[AppendResult]) -> None:
        """Tell the owners of special messages where they lie, in the order of `messages`."""
        assert self.specials is not None
        fresh = self.specials
        if self.claim is not None:
            fresh = [self.specials[index] for index in self.claim.fresh]
        for special, result in zip(fresh, results, strict=True):
            if special is None or special.stored is None:
                continue
            if result.status is PutStatus.PUT_OK:
                special.transaction_id = special.stored(result)


@dataclass(slots=True)
class Origin:
    """What the messages of a broker share."""

    region: str
    cluster: str
    max_body: int
    store_host: bytes
    """Stored with every record."""


@dataclass(slots=True)
class TopicTemplate:
    """A topic, with what all of its messages have in common."""

    topic: Topic
    plain: bool
    """Its messages may take the short way."""
    before: str
    between: str
    """See `stored_properties.frame`."""
    turn: int = 0
    """Requests so far: they go to the queues in turn. The client's choice is not honoured: Python and
    Go always say queue 0."""

    def next_queue(self) -> int:
        """The queue of the next request."""
        self.turn += 1
        return (self.turn - 1) % self.topic.write_queues


#: The sender's host as text, and packed as in a record.
_Peer: TypeAlias = tuple[str, bytes]


def lane_of(topic: Topic, origin: Origin, turn: int) -> TopicTemplate:
    """Made once a topic, and again when it is altered."""
    plain = topic.writable and not topic.name.startswith(EXEMPT_PREFIXES)
    return TopicTemplate(topic, plain, *frame(origin.region, origin.cluster, topic.name), turn)


def prepare_plain(
    sent: Sequence[v2.Message], lane: TopicTemplate, origin: Origin, peer: _Peer, now_ms: int
) -> Prepared | None:
    """The request's messages, or None when they want a closer look.

    They are of the lane's topic, whose name may be used; `peer` is their sender's host as text and
    packed.
    """
    if not lane.plain:
        return None
    topic = lane.topic
    name, expected = topic.name, topic.message_type
    queue_id = lane.turn % topic.write_queues
    before, between, max_body = lane.before, lane.between, origin.max_body
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
            or not (text.isascii() and text.isprintable() and len(text) < PLAIN_LENGTH)
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
        sharding = ""
        if group:
            queue_id = fifo_queue(group, topic.write_queues)
            sharding = f"__SHARDINGKEY\x01{group}\x02"
        born = system.born_timestamp
        born_ms = born.seconds * 1000 + born.nanos // 1_000_000 or now_ms
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
    lane.turn += 1
    return ready


@lru_cache(maxsize=8192)
def fifo_queue(message_group: str, queues: int) -> int:
    """The queue of a message group: Guava's consistent hash over Java's string hash.

    One fixed function on the server, because the clients' hashes differ from language to language
    (gRPC API, section 9.4; broker semantics, section 7, has check values).
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
