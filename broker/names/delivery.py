"""Data of pop state: a delivery, the options of a request, the reference in a handle. Pure.

Source: docs/formats/grpc-api.md, sections 6.1 and 7.5; docs/formats/broker-semantics.md, sections
1.6, 1.8 and 1.13. A queue of a group is identified by kind and id: kind 0 is the topic itself, 1
and 2 its retry topic under the first and the second form of the name. A delivery is identified by
its queue, offset and pop times: a change of the invisible time adds a pop time, and all handles of
the delivery stay valid as long as it does. Time is passed in, in wall milliseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from msgspec import Struct

#: A push consumer's message is hidden this long before its first renewal.
RENEW_SLICE_MS = 60_000
#: Renewals end after this; then the group's retry policy determines when the message comes back.
RENEW_MAX_MS = 3 * 3_600_000
#: Messages that did not reach the client, or whose client left, come back after this.
UNDELIVERED_MS = 1_000

_MINUTE_MS = 60_000
_RENEWALS = tuple((up_to * _MINUTE_MS, step * _MINUTE_MS) for up_to, step in (
    # The first slice plus earlier renewals equal the time that has passed.
    (2, 1), (5, 3), (10, 5), (20, 10), (50, 30),
))  # fmt: skip
_LAST_RENEWAL_MS = 60 * _MINUTE_MS

#: Returns whether a client is active.
Alive = Callable[[str], bool]
#: Kind and id of a queue.
Key = tuple[int, int]


class Outcome(enum.Enum):
    """Result of an acknowledgement or a change of the invisible time."""

    DONE = "done"
    #: Acknowledged before, or in another state's hands: success without a change.
    CONSUMED = "consumed"
    #: Expired or redelivered: the handle is no longer valid.
    STALE = "stale"


class DeliveryRef(Struct):
    """A delivery as referenced by a receipt handle."""

    key: Key
    offset: int
    pop_ms: int
    expires_ms: int


class PopOptions(Struct):
    """Delivery options of one request."""

    now_ms: int
    invisible_ms: int
    #: The client for which the invisible time is renewed while it is active.
    owner: str = ""
    #: Attempt id of the request; used by FIFO groups only.
    attempt_id: str = ""
    #: Queue of the revive topic, contained in the handles, for the records of these messages.
    revive_queue: int = 0


class Delivery(Struct):
    """A delivered message that is not acknowledged."""

    offset: int
    #: The newest pop time: of the delivery, or of its last change.
    pop_ms: int
    visible_ms: int
    #: Number of deliveries of the record in this queue; 1 for the first.
    attempt: int
    #: The push consumer for which the invisible time is renewed.
    owner: str = ""
    #: The pop time of the delivery itself. 0 if unknown: the delivery was taken over, and every
    #: earlier handle of the message belongs to it.
    since_ms: int = 0
    #: The invisible time is over; the message waits for redelivery or for its retry copy.
    ready: bool = False
    #: The journal has it in the log: the consumer offset may pass it.
    stored: bool = False
    #: Whether this delivery counts as an attempt; not if the consumer suspended it.
    counted: bool = True

    @property
    def attempts(self) -> int:
        """Return the attempts that the next delivery adds to."""
        return self.attempt if self.counted else self.attempt - 1

    def known_by(self, pop_ms: int) -> bool:
        """Return whether a handle with this pop time belongs to the delivery."""
        return self.since_ms <= pop_ms <= self.pop_ms


def next_pop_ms(delivery: Delivery, now_ms: int) -> int:
    """Return the next pop time of the same message, one that was not used before."""
    return max(now_ms, delivery.pop_ms + 1)


def renewal_ms(held_ms: int) -> int:
    """Return the next invisible time of a message held for `held_ms`; 0: no further renewal.

    The renewals are 1, 3, 5, 10, 30 and then 60 minutes, three hours in all.
    """
    if held_ms >= RENEW_MAX_MS:
        return 0
    for up_to, step in _RENEWALS:
        if held_ms < up_to:
            return step
    return min(_LAST_RENEWAL_MS, RENEW_MAX_MS - held_ms)
