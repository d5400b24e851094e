"""Bytes that topics have in the log: measured from the units of their queues, in small steps.

True after retention, a restart and a failover, because every replica has the queues. A step on the
event loop reads at most `_STEP_UNITS` units; when all queues have been read, the next round begins
after `_ROUND_S`. Nothing is measured without a quota of storage. What waits elsewhere for its topic
(delayed messages, half messages) counts when it arrives there.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from ...auth.model import ANY, TOPIC, Action
from ...store.queue.queue_bytes import QueueBytes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

    from ...auth.model import User
    from ...store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

#: About 3 ms: units, and queues that are looked at, of a step.
_STEP_UNITS = 65_536
_STEP_QUEUES = 2_000
#: A queue with something new costs as much as these units more.
_READ_UNITS = 1_000
#: Between two steps, so that a store of 80,000 queues costs a tenth of the loop at most.
_STEP_S = 0.03
_ROUND_S = 1.0
#: After a queue that cannot be read.
_FAILED_S = 30.0
_LAST = "\U0010ffff"


class StoredBytes:
    """Bytes in the log of all topics with queues."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queues: Mapping[tuple[str, int], ConsumeQueue],
        counts: Callable[[str], bool],
        wanted: Callable[[], bool],
    ) -> None:
        """`counts`: whether a topic counts. `wanted`: whether another round follows a round."""
        self._loop = loop
        self._queues = queues
        self._counts = counts
        self._wanted = wanted
        #: Rounds that have ended: the answers change with it.
        self.rounds = 0
        self._known: dict[tuple[str, int], QueueBytes] = {}
        self._names: list[str] = []
        #: Bytes of all topics before each of `_names`, and of all.
        self._before = [0]
        self._round: Iterator[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Measure, if nothing does yet; what one step can read is known at once."""
        if self._timer is None and not self._closed:
            self._step()

    def close(self) -> None:
        """Stop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def of_topic(self, name: str) -> int:
        """Return the bytes of a topic at the last round."""
        return self._between(name, name + "\0")

    def of_user(self, user: User | None) -> int:
        """Return the bytes of the topics that a user's policies let it send to, of all topics
        without a user (or of type Super)."""
        if user is None or user.is_super:
            return self._before[-1]
        total, reached = 0, ""
        for begin, end in sorted(_ranges(user)):
            if end > reached:
                total += self._between(max(begin, reached), end)
                reached = end
        return total

    def _between(self, begin: str, end: str) -> int:
        """Return the bytes of the topics from `begin` on, before `end`."""
        first, behind = bisect_left(self._names, begin), bisect_left(self._names, end)
        return self._before[behind] - self._before[first]

    def _step(self) -> None:
        self._timer = None
        if self._round is None:
            self._round = self._measure()
        pause_s = _STEP_S
        try:
            next(self._round)
        except (StopIteration, OSError) as end:
            self._round = None
            pause_s = _ROUND_S
            if isinstance(end, OSError):
                logger.warning("quota.not_measured error=%s: the former sizes count", end)
                pause_s = _FAILED_S
            elif not self._wanted():
                self._known.clear()
                return
        self._timer = self._loop.call_later(pause_s, self._step)

    def _measure(self) -> Iterator[None]:
        """Read all queues, one step at a time."""
        totals: dict[str, int] = {}
        units, looks = _STEP_UNITS, _STEP_QUEUES
        counted = 0
        for place in list(self._queues):
            topic, queue = place[0], self._queues.get(place)
            if queue is None or not self._counts(topic):
                continue
            known = self._known.get(place)
            if known is None or not known.is_of(queue):
                known = self._known[place] = QueueBytes(queue)
            counted += 1
            looks -= 1
            while (used := known.read(units)) >= units or looks <= 0:
                yield
                units, looks = _STEP_UNITS, _STEP_QUEUES
            units -= used + _READ_UNITS * bool(used)
            totals[topic] = totals.get(topic, 0) + known.total
        if counted > _STEP_QUEUES:
            yield
        if len(self._known) > counted:
            for place in self._known.keys() - self._queues.keys():
                del self._known[place]
        names = sorted(totals)
        self._before = [0, *accumulate(totals[name] for name in names)]
        self._names = names
        self.rounds += 1


def _ranges(user: User) -> Iterator[tuple[str, str]]:
    """Yield the ranges of topic names that the user may send to."""
    for policy in user.policies:
        resource = policy.resource
        if policy.allow and Action.PUB in policy.actions and resource.kind in (TOPIC, ANY):
            yield resource.name, resource.name + (_LAST if resource.prefix else "\0")
