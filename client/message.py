"""`Message`, which consumers receive, and `Receipt`, which producers receive.

The body's digest is verified and a compressed body is decompressed, up to a limit. If either
fails, the message is marked `corrupted` and keeps the received bytes. Mapping of the protobuf
fields: docs/formats/grpc-api.md, section 10.1. The native crate reads the common form of a
response, if it is installed; `tests/client/message_cases.py` compares both.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ..proto import native, v2

if TYPE_CHECKING:
    from .transport.addresses import Target

#: Bytes of a decompressed body: a small message must not fill the memory.
DECOMPRESSED_MAX = 64 << 20
_ANY_WRAPPING = zlib.MAX_WBITS | 32
#: The crate's function: a message for each response, None for those of an unusual form.
NativeRead: TypeAlias = "Callable[[Sequence[bytes], str, Target | None], Sequence[Message | None]]"
A = TypeVar("A", v2.ReceiveMessageResponse, v2.PullMessageResponse)
_TYPE_NAMES: dict[int, str] = {
    v2.NORMAL: "normal",
    v2.FIFO: "fifo",
    v2.DELAY: "delay",
    v2.TRANSACTION: "transaction",
    v2.LITE: "lite",
    v2.PRIORITY: "priority",
}


@dataclass(frozen=True, slots=True)
class Receipt:
    """A stored message."""

    message_id: str
    topic: str
    broker: str
    #: Queue offset. The server chooses the queue; the response does not name it.
    offset: int
    transaction_id: str = ""
    #: Handle of a delayed message, for `Producer.recall`.
    recall_handle: str = ""


@dataclass(slots=True)
class Message:
    """A received message.

    The native crate passes the fields by position: add new ones at the end, with a default.
    """

    topic: str
    body: bytes
    message_id: str
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Message group (FIFO order); empty for none.
    group: str = ""
    type: str = "normal"
    #: 1 for the first delivery.
    attempt: int = 1
    broker: str = ""
    queue_id: int = 0
    offset: int = 0
    born_ms: int = 0
    stored_ms: int = 0
    deliver_ms: int = 0
    priority: int | None = None
    trace_context: str = ""
    #: Original topic of a dead letter.
    dead_letter_of: str = ""
    corrupted: bool = False
    receipt_handle: str = field(default="", repr=False)
    #: Endpoint that delivered the message and takes its acknowledgement.
    source: Target | None = field(default=None, repr=False)
    #: Of a topic of type lite: the lite topic inside it.
    lite_topic: str = ""

    @property
    def born_at(self) -> datetime | None:
        """Creation time by the producer's clock."""
        return _datetime(self.born_ms)

    @property
    def stored_at(self) -> datetime | None:
        """Time at which the broker stored the message."""
        return _datetime(self.stored_ms)

    @property
    def deliver_at(self) -> datetime | None:
        """Scheduled delivery time of a delayed message."""
        return _datetime(self.deliver_ms)


@cache
def native_read() -> NativeRead | None:
    """Return the crate's function for responses; None without the crate. Raises
    NativeVersionError."""
    crate = native.load()
    if crate is None:
        return None
    numbers = range(max(v2.MessageType.values()) + 1)
    return crate.message_reader(Message, [_TYPE_NAMES.get(n, "normal") for n in numbers]).read


def read_responses(
    responses: Sequence[bytes], kind: type[A], broker: str, source: Target | None = None
) -> tuple[list[Message], list[A]]:
    """Return the messages of a stream, and the responses without one. Raises DecodeError."""
    read: Sequence[Message | None] = [None] * len(responses)
    native_reader = native_read()
    if native_reader is not None:
        read = native_reader(responses, broker, source)
    messages, others = [], []
    for response, message in zip(responses, read, strict=True):
        if message is not None:
            messages.append(message)
            continue
        answer = kind.FromString(response)
        if answer.WhichOneof("content") == "message":
            messages.append(read_message(answer.message, broker, source))
        else:
            others.append(answer)
    return messages, others


def read_message(sent: v2.Message, broker: str = "", source: Target | None = None) -> Message:
    """Return the message of a response."""
    system = sent.system_properties
    body, corrupted = _decoded_body(sent.body, system)
    message = Message(
        sent.topic.name,
        body,
        system.message_id,
        system.tag,
        tuple(system.keys),
        dict(sent.user_properties),
        system.message_group,
        _TYPE_NAMES.get(system.message_type, "normal"),
        max(1, system.delivery_attempt),
        broker,
        system.queue_id,
        system.queue_offset,
        _ms(system.born_timestamp),
        _ms(system.store_timestamp),
        trace_context=system.trace_context,
        corrupted=corrupted,
        receipt_handle=system.receipt_handle,
        source=source,
        lite_topic=system.lite_topic,
    )
    if system.HasField("delivery_timestamp"):
        message.deliver_ms = _ms(system.delivery_timestamp)
    if system.HasField("priority"):
        message.priority = system.priority
    if system.HasField("dead_letter_queue"):
        message.dead_letter_of = system.dead_letter_queue.topic
    return message


def _ms(stamp: v2.Timestamp) -> int:
    return stamp.seconds * 1000 + stamp.nanos // 1_000_000


def _datetime(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _decoded_body(body: bytes, system: v2.SystemProperties) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether it is corrupted."""
    if not _digest_matches(body, system.body_digest):
        return body, True
    if system.body_encoding != v2.GZIP:
        return body, False
    decompressor = zlib.decompressobj(_ANY_WRAPPING)
    try:
        plain = decompressor.decompress(body, DECOMPRESSED_MAX)
    except zlib.error:
        return body, True
    return (plain, False) if decompressor.eof else (body, True)


def _digest_matches(body: bytes, digest: v2.Digest) -> bool:
    if digest.type == v2.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == v2.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        # Clients format CRC32 differently; it is not verified.
        return True
    return found == digest.checksum.lower()
