"""Receipt handles: the codec of the token that acknowledges a delivery. Pure.

Nine fields, separated by single spaces (docs/formats/grpc-api.md, section 6.1):

    start offset of the batch, pop time (ms), invisible time (ms), revive queue, topic kind,
    broker name, queue id, queue offset, commit-log offset

The revive queue is 999 for FIFO groups, and otherwise the one for the records of the delivery; the
topic kind is 0 for the topic itself, 1 and 2 for the group's retry topic under the first and the
second form of its name. A delivery is identified by (kind, queue, offset, pop time).
ChangeInvisibleDuration gives it a new pop time and start (for FIFO groups only a new invisible
time); every handle of a delivery stays valid as long as the delivery.
"""

from __future__ import annotations

from msgspec import Struct

from .delivery import Key
from .retry import NORMAL, RETRY_V2

FIFO_REVIVE_QUEUE = 999
_FIELDS_MIN = 8
_LENGTH_MAX = 512
_OFFSET_MAX = 1 << 63


class ReceiptHandle(Struct):
    """A decoded handle."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker: str
    queue_id: int
    offset: int
    #: -1 if the handle has only eight fields.
    physical_offset: int

    @property
    def key(self) -> Key:
        """The queue within the group."""
        return self.kind, self.queue_id

    @property
    def expires_ms(self) -> int:
        """When the message becomes visible again, according to the handle."""
        return self.pop_ms + self.invisible_ms


def encode_handle(handle: ReceiptHandle) -> str:
    """Encode a handle."""
    return (
        f"{handle.start} {handle.pop_ms} {handle.invisible_ms} {handle.revive_queue} "
        f"{handle.kind} {handle.broker} {handle.queue_id} {handle.offset} {handle.physical_offset}"
    )


def decode_handle(text: str) -> ReceiptHandle | None:
    """Decode a handle; None for any other text."""
    fields = text.split(" ")
    if len(text) > _LENGTH_MAX or not _FIELDS_MIN <= len(fields) <= _FIELDS_MIN + 1:
        return None
    try:
        handle = ReceiptHandle(
            int(fields[0]),
            int(fields[1]),
            int(fields[2]),
            int(fields[3]),
            int(fields[4]),
            fields[5],
            int(fields[6]),
            int(fields[7]),
            int(fields[8]) if len(fields) > _FIELDS_MIN else -1,
        )
    except ValueError:
        return None
    if handle.queue_id < 0 or not 0 <= handle.offset < _OFFSET_MAX:
        return None
    return handle if NORMAL <= handle.kind <= RETRY_V2 else None
