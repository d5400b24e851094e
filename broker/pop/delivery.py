"""What pop state is made of: a delivery, the terms of a request, the claim of a handle. Pure.

Source: gRPC API, sections 6.1 and 7.5; broker semantics, sections 1.6, 1.8 and 1.13. A queue of a group
is known by its kind and id: kind 0 is the topic itself, 1 and 2 its retry topic under the first and the
second form of the name. A delivery is known by its queue, its offset and its pop times: a change of the
invisible time gives it a new one, and every handle since the delivery stays good for as long as the
delivery lasts. Time is passed in, in wall milliseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

RENEW_SLICE_MS = 60_000
"""A message of a push consumer stays hidden this long before it is renewed for the first time."""
RENEW_MAX_MS = 3 * 3_600_000
"""After this the renewal ends, and the group's retry policy says when the message comes back."""
UNDELIVERED_MS = 1_000
"""What could not be written to the client, or belonged to one that left, comes back after this."""

_MINUTE_MS = 60_000
_RENEWALS = tuple((up_to * _MINUTE_MS, step * _MINUTE_MS) for up_to, step in (
    # The first slice and the renewals before add up to the time that has passed.
    (2, 1), (5, 3), (10, 5), (20, 10), (50, 30),
))  # fmt: skip
_LAST_RENEWAL_MS = 60 * _MINUTE_MS

Alive = Callable[[str], bool]
"""Whether a client is there."""
Key = tuple[int, int]
"""Kind and id of a queue."""


class Outcome(enum.Enum):
    """Of an acknowledgement or a change of the invisible time."""

    DONE = "done"
    CONSUMED = "consumed"
    """It had been acknowledged before, or is with somebody else: fine, nothing changed."""
    STALE = "stale"
    """Expired or redelivered: the handle is of no use any more."""


@dataclass(slots=True)
class Claim:
    """What a receipt handle says about a delivery."""

    key: Key
    offset: int
    pop_ms: int
    expires_ms: int


@dataclass(slots=True)
class Terms:
    """How one request gets its messages."""

    now_ms: int
    invisible_ms: int
    owner: str = ""
    """The client for which the invisible time is renewed while it lives."""
    attempt_id: str = ""
    """Of the request; only FIFO groups look at it."""
    revive_queue: int = 0
    """Queue of the revive topic, named in the handles, for what is written about these messages."""


@dataclass(slots=True)
class Delivery:
    """A message that was given out and is not acknowledged."""

    offset: int
    pop_ms: int
    """The newest of its pop times: of the delivery, or of the last change."""
    visible_ms: int
    attempt: int
    """Times that the record in this queue was given out; 1 for the first."""
    owner: str = ""
    """The push consumer for which the invisible time is renewed."""
    since_ms: int = 0
    """The pop time of the delivery itself. 0 when it is not known: it was taken over, and every
    earlier handle of the message is one of this delivery."""
    ready: bool = False
    """The invisible time is over, and it waits to be given out again or copied."""
    stored: bool = False
    """The journal has it in the log: the consumer offset may pass it."""
    counted: bool = True
    """Whether this time counts as an attempt; not when the consumer suspended it."""

    @property
    def attempts(self) -> int:
        """What the next delivery has to add to."""
        return self.attempt if self.counted else self.attempt - 1

    def known_by(self, pop_ms: int) -> bool:
        """Whether a handle with this pop time belongs to the delivery."""
        return self.since_ms <= pop_ms <= self.pop_ms


def next_pop_ms(delivery: Delivery, now_ms: int) -> int:
    """The next pop time of the same message: never one that was used."""
    return max(now_ms, delivery.pop_ms + 1)


def renewal_ms(held_ms: int) -> int:
    """How long a message that its owner has had for `held_ms` is hidden further; 0: not any more.

    The renewals are 1, 3, 5, 10, 30 and then 60 minutes, three hours in all.
    """
    if held_ms >= RENEW_MAX_MS:
        return 0
    for up_to, step in _RENEWALS:
        if held_ms < up_to:
            return step
    return min(_LAST_RENEWAL_MS, RENEW_MAX_MS - held_ms)
