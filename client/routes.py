"""Where the queues of a topic are, and which one is next. Pure; the time is passed in.

Promises: only leaders' queues are used (broker id 0); sends go round robin, begin anywhere, and avoid
endpoints that just failed while there are others; messages of one group always go to one queue, chosen
as the official Python client chooses it (gRPC API, sections 9.3 and 9.4). A failed endpoint is taken
up again after a few seconds, or at once when it answers a heartbeat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..proto import v2
from .transport.addresses import Target, target_of

ISOLATION_S = 5.0
"""How long a failed endpoint is avoided: about a failover's length."""
_READABLE = frozenset((v2.READ, v2.READ_WRITE))
_WRITABLE = frozenset((v2.WRITE, v2.READ_WRITE))


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue of a topic, and where it is reached."""

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
    asked_s: float = 0.0
    """When its question was asked."""

    def targets(self) -> set[Target]:
        """Everything that this topic needs a connection to."""
        return {queue.target for queue in (*self.readable, *self.writable)}


def read_route(topic: str, queues: Sequence[v2.MessageQueue], turn: int = 0) -> Route:
    """The route of an answer."""
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
    """Endpoints that failed a moment ago."""

    def __init__(self) -> None:
        self._until_s: dict[Target, float] = {}

    def fail(self, target: Target, now_s: float) -> None:
        """Avoid it for a while."""
        self._until_s[target] = now_s + ISOLATION_S

    def recover(self, target: Target) -> None:
        """It answered."""
        self._until_s.pop(target, None)

    def allows(self, target: Target, now_s: float) -> bool:
        """Whether it may be used."""
        until_s = self._until_s.get(target)
        return until_s is None or until_s <= now_s


def next_queue(
    queues: tuple[Queue, ...], route: Route, isolation: Isolation, now_s: float
) -> Queue | None:
    """The next queue in turn, one that works if there is any; None for an empty route."""
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
    """The one queue of a message group, whatever failed: order comes first."""
    if not queues:
        return None
    digest = hashlib.sha256(group.encode()).digest()
    return queues[int.from_bytes(digest, "big") % len(queues)]
