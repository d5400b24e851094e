"""Route of a topic and selection of the next queue. Pure; the time is an argument.

Only queues of leaders (broker id 0) are used. Sends go round robin from a random start and avoid
endpoints that failed recently while others exist. Messages of one message group always go to the
same queue, chosen as in the official Python client (docs/formats/grpc-api.md, sections 9.3 and
9.4). A failed endpoint is used again after a few seconds, or when it answers a heartbeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..proto import v2
from .transport.addresses import Target, target_of

#: How long a failed endpoint is avoided: about the duration of a failover.
ISOLATION_S = 5.0
_READABLE = frozenset((v2.READ, v2.READ_WRITE))
_WRITABLE = frozenset((v2.WRITE, v2.READ_WRITE))


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic and its endpoint."""

    broker: str
    queue_id: int
    target: Target
    proto: v2.MessageQueue = field(compare=False, repr=False)


@dataclass(slots=True)
class Route:
    """The queues of one topic."""

    topic: str
    readable: tuple[Queue, ...] = ()
    writable: tuple[Queue, ...] = ()
    turn: int = 0
    #: Steady time at which the route was requested.
    requested_s: float = 0.0

    def targets(self) -> set[Target]:
        """Return the endpoints of all queues."""
        return {queue.target for queue in (*self.readable, *self.writable)}


def read_route(topic: str, queues: Sequence[v2.MessageQueue], turn: int = 0) -> Route:
    """Return the route of a response; `turn` is the round-robin counter."""
    readable, writable = [], []
    for sent in queues:
        target = target_of(sent.broker.endpoints)
        if target is None or sent.broker.id != 0:
            continue
        queue = Queue(sent.broker.name, sent.id, target, sent)
        if sent.permission in _READABLE:
            readable.append(queue)
        if sent.permission in _WRITABLE:
            writable.append(queue)
    return Route(topic, tuple(readable), tuple(writable), turn)


class Isolation:
    """Endpoints that failed recently."""

    def __init__(self) -> None:
        self._until_s: dict[Target, float] = {}

    def fail(self, target: Target, now_s: float) -> None:
        """Avoid an endpoint for `ISOLATION_S`."""
        self._until_s[target] = now_s + ISOLATION_S

    def recover(self, target: Target) -> None:
        """Use an endpoint again: it answered."""
        self._until_s.pop(target, None)

    def allows(self, target: Target, now_s: float) -> bool:
        """Whether an endpoint may be used."""
        until_s = self._until_s.get(target)
        return until_s is None or until_s <= now_s


def next_queue(
    queues: tuple[Queue, ...], route: Route, isolation: Isolation, now_s: float
) -> Queue | None:
    """Return the next queue, preferably of a healthy endpoint; None for an empty route."""
    if not queues:
        return None
    first = route.turn
    route.turn += 1
    for step in range(len(queues)):
        queue = queues[(first + step) % len(queues)]
        if isolation.allows(queue.target, now_s):
            return queue
    return queues[first % len(queues)]


def queue_of_group(queues: tuple[Queue, ...], group: str) -> Queue | None:
    """Return the queue of a message group, even on a failed endpoint: order has priority."""
    if not queues:
        return None
    digest = hashlib.sha256(group.encode()).digest()
    return queues[int.from_bytes(digest, "big") % len(queues)]
