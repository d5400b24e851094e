"""Receipt handles: what a delivered message is acknowledged by.

Nine fields, separated by single spaces (gRPC API, section 6.1):

    start offset of the batch, pop time (ms), invisible time (ms), revive queue, topic kind,
    broker name, queue id, queue offset, commit-log offset

The revive queue is 999 for FIFO groups and 0 otherwise; the topic kind is 0, because redelivery
happens in place and needs no retry topic. A delivery is known by (queue, offset, pop time):
ChangeInvisibleDuration keeps the pop time and moves only the invisible time, so that every handle of
one delivery stays good for as long as the delivery lasts. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FIFO_REVIVE_QUEUE = 999
_FIELDS_MIN = 8
_LENGTH_MAX = 512
_OFFSET_MAX = 1 << 63


@dataclass(slots=True)
class ReceiptHandle:
    """A decoded handle."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: int
    broker: str
    queue_id: int
    offset: int
    physical_offset: int
    """-1 when the handle has only eight fields."""

    @property
    def expires_ms(self) -> int:
        """When the message becomes visible again, as far as the handle knows."""
        return self.pop_ms + self.invisible_ms


def encode_handle(handle: ReceiptHandle) -> str:
    """The text of a handle."""
    return (
        f"{handle.start} {handle.pop_ms} {handle.invisible_ms} {handle.revive_queue} "
        f"{handle.kind} {handle.broker} {handle.queue_id} {handle.offset} {handle.physical_offset}"
    )


def decode_handle(text: str) -> ReceiptHandle | None:
    """The handle, or None for anything that is not one."""
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
    return handle if handle.queue_id >= 0 and 0 <= handle.offset < _OFFSET_MAX else None
