"""Locks of queues, for orderly classic consumers. Pure; in memory.

A client locks the queues that it consumes in order, renews the locks every 20 s and releases them
when it leaves. A lock that is not renewed for 60 s may be taken by another client of the group
(docs/formats/remoting.md, sections 10 and 13). A loss lets two clients consume a queue until they
have asked again. The time is passed in, in steady nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

EXPIRY_NS = 60_000_000_000

#: Topic and queue id.
Queue: TypeAlias = tuple[str, int]


class QueueLocks:
    """The locks of all groups. Only existing groups and queues may be passed: nothing else bounds
    the number of locks.
    """

    def __init__(self) -> None:
        #: By group and queue: client id and time of the last renewal.
        self._locks: dict[str, dict[Queue, tuple[str, int]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ns: int) -> list[Queue]:
        """Lock or renew; return those of the queues that the client now holds."""
        locks = self._locks.setdefault(group, {})
        held = []
        for queue in queues:
            owner = locks.get(queue)
            if owner is None or owner[0] == client_id or now_ns - owner[1] > EXPIRY_NS:
                locks[queue] = client_id, now_ns
                held.append(queue)
        if not locks:
            del self._locks[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Release those of the queues that the client holds."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0))[0] == client_id:
                del locks[queue]
        if not locks:
            self._locks.pop(group, None)

    def is_locked(self, group: str, now_ns: int) -> bool:
        """Return whether any client of the group holds a lock: the group consumes in order."""
        locks = self._locks.get(group, {})
        return any(now_ns - since_ns <= EXPIRY_NS for _, since_ns in locks.values())
