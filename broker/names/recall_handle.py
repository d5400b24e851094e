"""Recall handle: the token with which a producer recalls a delayed message. Pure codec.

    urlsafe base64, padded, of   v1 <topic> <broker name> <time, ms> <message id> #<mark>

with single spaces and the slot's time (TIMER_OUT_MS) + 1 ms (docs/formats/grpc-api.md, section 6.3;
docs/formats/broker-semantics.md, section 6.3). The mark, 16 hexadecimal digits, is a random number
that only the message's record and its handle hold: two messages with one id differ by it, and
a handle cannot be guessed. Apache's handles have none, and its brokers ignore it. Opaque to
clients; every broker can decode it.
"""

from __future__ import annotations

import base64
import binascii
import re

from msgspec import Struct

_VERSION = "v1"
_FIELDS = 5
#: A mark is positive and fits a signed field of eight bytes.
_MARKED = re.compile(r"(.+) #(?!0{16})([0-7][0-9a-f]{15})", re.DOTALL)


class RecallHandle(Struct, frozen=True):
    """One delayed message."""

    topic: str
    broker: str
    #: The slot's time plus one: a record due then is in the same slot.
    recall_ms: int
    message_id: str
    #: 0: the message has none, because Apache or an earlier version stored it.
    mark: int = 0

    def encode(self) -> str:
        """Encode a handle."""
        text = f"{_VERSION} {self.topic} {self.broker} {self.recall_ms} {self.message_id}"
        if self.mark:
            text += f" #{self.mark:016x}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle | None:
    """Decode a handle; None for any other text."""
    try:
        plain = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None
    fields = plain.split(" ", _FIELDS - 1)
    if len(fields) != _FIELDS or fields[0] != _VERSION:
        return None
    _, topic, broker, time, message_id = fields
    if not (topic and broker and message_id and time.isascii() and time.isdecimal()):
        return None
    if len(time) > len(str(1 << 63)):
        return None
    marked = _MARKED.fullmatch(message_id)
    if marked is not None:
        return RecallHandle(topic, broker, int(time), marked[1], int(marked[2], 16))
    if message_id.rpartition(" ")[2].startswith("#"):
        return None  # a part of a handle
    return RecallHandle(topic, broker, int(time), message_id)
