"""A message as a consumer gets it, and a receipt as a producer gets it.

Promises: a body is whole (its digest is compared) and plain (what the producer compressed is
inflated, with a bound); one that is neither is marked `corrupted` and keeps its bytes as they came.
Mapping: gRPC API, section 10.1.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..proto import v2

if TYPE_CHECKING:
    from .transport.addresses import Target

INFLATED_MAX = 64 << 20
"""Bytes of an inflated body; a small message must not be able to fill the memory."""
_ANY_WRAPPING = zlib.MAX_WBITS | 32
_TYPE_NAMES = {
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
    offset: int
    """In its queue; which one, the server chooses and does not say."""
    transaction_id: str = ""
    recall_handle: str = ""
    """Of a delayed message: `Producer.recall` takes it back."""


@dataclass(slots=True)
class Message:
    """A received message."""

    topic: str
    body: bytes
    message_id: str
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    """The message group whose order is kept; empty for none."""
    type: str = "normal"
    attempt: int = 1
    """1 for the first delivery."""
    broker: str = ""
    queue_id: int = 0
    offset: int = 0
    born_ms: int = 0
    stored_ms: int = 0
    deliver_ms: int = 0
    priority: int | None = None
    trace_context: str = ""
    dead_letter_of: str = ""
    """Of a dead letter: the topic that it was sent to."""
    corrupted: bool = False
    receipt_handle: str = field(default="", repr=False)
    source: Target | None = field(default=None, repr=False)
    """Where it came from, and where it is acknowledged."""

    @property
    def born_at(self) -> datetime | None:
        """When the producer made it, as its clock said."""
        return _when(self.born_ms)

    @property
    def stored_at(self) -> datetime | None:
        """When the broker stored it."""
        return _when(self.stored_ms)

    @property
    def deliver_at(self) -> datetime | None:
        """When a delayed message was to be delivered."""
        return _when(self.deliver_ms)


def read_message(sent: v2.Message, broker: str = "", source: Target | None = None) -> Message:
    """The message of an answer."""
    system = sent.system_properties
    body, corrupted = _plain(sent.body, system)
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


def _when(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def _plain(body: bytes, system: v2.SystemProperties) -> tuple[bytes, bool]:
    """The inflated body, and whether it is damaged."""
    if not _intact(body, system.body_digest):
        return body, True
    if system.body_encoding != v2.GZIP:
        return body, False
    inflater = zlib.decompressobj(_ANY_WRAPPING)
    try:
        plain = inflater.decompress(body, INFLATED_MAX)
    except zlib.error:
        return body, True
    return (plain, False) if inflater.eof else (body, True)


def _intact(body: bytes, digest: v2.Digest) -> bool:
    if digest.type == v2.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == v2.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        # CRC32 is written differently by every client; the transport has its own checksum.
        return True
    return found == digest.checksum.lower()
