"""One mirror: rounds over topics, queues and groups, until it is stopped.

Memory: at most `COPIES_AT_ONCE` queues are copied at once, each with one pull (32 messages and 256
KiB, or one larger message). After a failure of a source broker the queues of the others are copied;
it is asked again after the time that the failure took, at least `PAUSE_S`, and groups wait until
all source brokers answer. A failure of the target ends the round. A refusal stops the queue that it
concerns: its reason is shown, the others go on.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..remoting.codec import FrameError
from .cluster import Broker, Cluster, UnexpectedError
from .copying import Place, Position, QueueCopy
from .groups import RETRY, GroupMoves, is_system_group, retry_origin
from .link import LinkError, RefusedError
from .origin import prefix_of
from .state import Progress, StateDirectory, StateError

logger = logging.getLogger(__name__)
T = TypeVar("T")
COPIES_AT_ONCE = 16
#: Between two rounds without work, and after a failure.
PAUSE_S = 0.5
#: Topics and groups are listed, and groups follow, so often.
GROUPS_S = 2.0
_NOT_MIRRORED = (RETRY, "%DLQ%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC_", "%SYS%")
_FAILURES = (LinkError, RefusedError, UnexpectedError, FrameError)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which topics and groups are mirrored: shell patterns."""

    topics: Sequence[str] = ("*",)
    groups: Sequence[str] = ("*",)

    def has_topic(self, name: str) -> bool:
        """Return whether a topic is mirrored."""
        return not name.startswith(_NOT_MIRRORED) and _matches(name, self.topics)

    def has_group(self, name: str) -> bool:
        """Return whether a group is mirrored."""
        return not is_system_group(name) and _matches(name, self.groups)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _unmatched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    known = list(names)
    given = (pattern for pattern in patterns if pattern != "*")
    return [each for each in given if not any(_matches(name, (each,)) for name in known)]


def place_in(brokers: Sequence[str], place: Place, number: int, width: int) -> Place:
    """Return the queue of the target for a queue of source broker `number`.

    Source broker i goes to target broker i modulo their number, its queues behind the `width`
    queues of each source broker before it there (of the broker with the most queues). Without a
    width all go to queue 0.
    """
    queue_id = place.queue_id + (number // len(brokers)) * width if width else 0
    return Place(place.topic, brokers[number % len(brokers)], queue_id)


class Mirror:
    """Copies from one cluster to another."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        state: StateDirectory,
        choice: Choice,
        wall_ms: Callable[[], int],
    ) -> None:
        self._wall_ms = wall_ms
        self._source = source
        self._target = target
        self._state = state
        self._choice = choice
        self._progress = Progress()
        self._copies: dict[Place, QueueCopy] = {}
        self._retries: dict[Place, QueueCopy] = {}
        self._moves = GroupMoves(source, target, {})
        self._ready_topics: set[tuple[str, str, int]] = set()
        self._limit = asyncio.Semaphore(COPIES_AT_ONCE)
        #: Why a topic could not be created or asked, by topic.
        self._refused: dict[str, str] = {}
        #: Source brokers that failed: why, and when they are asked again (of the loop's clock).
        self._failed: dict[str, tuple[str, float]] = {}
        #: Given patterns that match nothing, by kind.
        self._unmatched: dict[str, list[str]] = {}
        #: Why the last round failed; "" if it did not.
        self.error = ""

    def load(self) -> None:
        """Read the saved progress. Raises StateError."""
        self._progress = self._state.load()
        self._moves.moved = self._progress.moved

    async def run(
        self, stopped: asyncio.Event, show: Callable[[dict[str, Any]], None], *, once: bool
    ) -> None:
        """Mirror until `stopped`, or with `once` until everything is copied and groups follow.

        With `once`, a queue, topic or group that fails does not stop the others; `status` tells why
        each has failed.
        """
        loop = asyncio.get_running_loop()
        listed = -GROUPS_S
        try:
            while not stopped.is_set():
                lists = loop.time() - listed >= GROUPS_S
                lag = await self._round(lists=lists)
                if lists and not self.error:
                    listed = loop.time()
                self._save()
                show(self.status())
                if once and not self.error and not lag and lists:
                    return
                if not self._has_work():
                    await _pause(stopped)
        finally:
            self._source.close()
            self._target.close()

    async def _round(self, *, lists: bool) -> int:
        """Copy for a turn of each queue; return what is left, without what is refused."""
        now = asyncio.get_running_loop().time()
        self._failed = {name: row for name, row in self._failed.items() if row[1] > now}
        try:
            if lists:
                await self._list()
            await self._copy(self._copies)
            if lists and not self._failed:
                await self._follow_groups()
            await self._copy(self._retries)
            self.error = next((reason for reason, _ in self._failed.values()), "")
        except _FAILURES as error:
            if str(error) != self.error:
                logger.warning("mirror.failed reason=%s", error)
            self.error = str(error)
        queues = [*self._copies.values(), *self._retries.values()]
        return sum(copy.lag for copy in queues if not copy.error)

    async def _list(self) -> None:
        """Learn brokers, topics and groups; create what the target lacks."""
        await self._source.refresh()
        await self._target.refresh()
        self._check_pair()
        beans: dict[str, dict[str, Any]] = {}
        for name in sorted(self._source.brokers):
            beans |= await self._from(name, Broker.topics) or {}
        self._unmatched["topic"] = _unmatched(self._choice.topics, beans)
        for topic in sorted(filter(self._choice.has_topic, beans)):
            try:
                await self._add_topic(topic, beans[topic], self._copies)
                self._refused.pop(topic, None)
            except RefusedError as error:
                self._refused[topic] = str(error)

    def _check_pair(self) -> None:
        """Raise StateError if the state belongs to other clusters, or both sides are one."""
        links = (cluster.brokers.values() for cluster in (self._source, self._target))
        sources, targets = ({broker.link.address for broker in each} for each in links)
        if both := sources & targets:
            raise StateError(
                f"the source and the target are one cluster: broker {min(both)} belongs to both"
            )
        progress = self._progress
        pair = self._source.name, ";".join(self._source.nameservers)
        text, target = "@".join(pair), ";".join(self._target.nameservers)
        if not progress.source:
            progress.source, progress.target = text, target
        if progress.source.partition("@")[0] != self._source.name:
            raise StateError(
                f"the state directory belongs to a mirror of {progress.source}, not of {text}"
            )

    async def _add_topic(
        self, topic: str, bean: dict[str, Any], copies: dict[Place, QueueCopy]
    ) -> None:
        """Add the queues of a topic that are not known yet."""
        ends = {
            Place(topic, name, queue_id): high
            for name in sorted(self._source.brokers)
            for queue_id, (_, high) in (await self._ends(name, topic)).items()
        }
        width = max((place.queue_id + 1 for place in ends), default=0)
        numbers = {name: number for number, name in enumerate(sorted(self._source.brokers))}
        for place, high in ends.items():
            copy = copies.get(place)
            if copy is None:
                copy = copies[place] = self._queue_copy(place, numbers[place.broker], width, 0)
            copy.end = high
        targets = [copy.target for place, copy in copies.items() if place.topic == topic]
        for name in {target.broker for target in targets}:
            queues = max(target.queue_id for target in targets if target.broker == name) + 1
            await self._ensure_topic(self._target.broker(name), bean, queues)

    def _queue_copy(self, place: Place, number: int, width: int, begin: int) -> QueueCopy:
        """Return the copy of a queue, with the saved target and position or those of `place_in`."""
        known = self._progress.queues.get(place)
        if known is None:
            target = place_in(sorted(self._target.brokers), place, number, width)
            # More queues or brokers than at the start: the places behind them may be taken.
            others = [other for other, _ in self._progress.queues.values()]
            if width and target in others:
                same = (
                    o.queue_id
                    for o in others
                    if (o.topic, o.broker) == (target.topic, target.broker)
                )
                target = replace(target, queue_id=max(same) + 1)
            known = self._progress.queues[place] = target, Position()
        prefix = prefix_of(self._source.name, place.broker, place.queue_id).encode()
        return QueueCopy(place, *known, prefix, begin)

    async def _ensure_topic(self, target: Broker, bean: dict[str, Any], queues: int) -> None:
        key = target.name, bean["topicName"], queues
        if key in self._ready_topics:
            return
        present = (await target.topics()).get(bean["topicName"])
        if present is None:
            await target.put_topic(bean, queues)
        elif min(present["writeQueueNums"], present["readQueueNums"]) < queues:
            await target.put_topic({**bean, **present, "attributes": {}}, queues)
        self._ready_topics.add(key)

    async def _copy(self, copies: dict[Place, QueueCopy]) -> None:
        """Give each queue a turn. Raises LinkError if a server failed."""
        for topic in {place.topic for place in copies}:
            for name in self._source.brokers:
                for queue_id, (_, high) in (await self._ends(name, topic)).items():
                    if (copy := copies.get(Place(topic, name, queue_id))) is not None:
                        copy.end = high
        waiting = [
            copy
            for copy in copies.values()
            if (copy.lag or not copy.is_located) and copy.source.broker not in self._failed
        ]
        results = await asyncio.gather(*map(self._turn, waiting), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _ends(self, name: str, topic: str) -> dict[int, tuple[int, int]]:
        """Return first and last offset by queue at a source broker; none if it fails."""
        return await self._from(name, lambda broker: broker.ends(topic)) or {}

    async def _from(self, name: str, ask: Callable[[Broker], Awaitable[T]]) -> T | None:
        """Ask a source broker; None if it has failed, now or not long ago."""
        if name in self._failed:
            return None
        began = asyncio.get_running_loop().time()
        try:
            return await ask(self._source.brokers[name])
        except _FAILURES as error:
            self._note_failure(name, error, began)
            return None

    def _note_failure(self, name: str, error: Exception, began: float) -> None:
        """A host that does not answer costs seconds: it may not cost the others most of them."""
        now = asyncio.get_running_loop().time()
        self._failed[name] = f"broker {name}: {error}", now + max(now - began, PAUSE_S)
        if self._failed[name][0] != self.error:
            logger.warning("mirror.broker_failed broker=%s reason=%s", name, error)

    async def _turn(self, copy: QueueCopy) -> None:
        async with self._limit:
            name = copy.source.broker
            source = self._source.broker(name)
            target = self._target.broker(copy.target.broker)
            began = asyncio.get_running_loop().time()
            try:
                await copy.advance(source, target)
                copy.error = ""
            except LinkError as error:
                if error.address != source.link.address:
                    raise
                self._note_failure(name, error, began)
            except (RefusedError, UnexpectedError, FrameError) as error:
                if copy.error != str(error):
                    logger.warning("mirror.queue_stopped queue=%s reason=%s", copy.source, error)
                copy.error = str(error)

    async def _follow_groups(self) -> None:
        beans: dict[str, dict[str, Any]] = {}
        for broker in self._source.brokers.values():
            beans |= await broker.groups()
        self._unmatched["group"] = _unmatched(self._choice.groups, beans)
        for group in sorted(filter(self._choice.has_group, beans)):
            await self._moves.follow(group, beans[group], self._copies)
        await self._add_retries()

    async def _add_retries(self) -> None:
        """Add the retry queues of moved groups, from their offsets at the move on."""
        topics: dict[str, dict[str, Any]] = {}
        if self._moves.moved:
            for broker in self._source.brokers.values():
                topics |= await broker.topics()
        for group, begins in self._moves.moved.items():
            for topic in topics:
                if retry_origin(topic, group):
                    await self._add_retry(topic, dict(begins))

    async def _add_retry(self, topic: str, begins: dict[Place, int]) -> None:
        for number, name in enumerate(sorted(self._source.brokers)):
            for queue_id, (_, high) in (await self._ends(name, topic)).items():
                place = Place(topic, name, queue_id)
                if place not in self._retries:
                    begin = begins.get(place, 0)
                    self._retries[place] = self._queue_copy(place, number, 0, begin)
                self._retries[place].end = high

    def _has_work(self) -> bool:
        """Return whether the next round begins at once."""
        if self.error and not self._failed:
            return False
        queues = (*self._copies.values(), *self._retries.values())
        return any(copy.lag and copy.source.broker not in self._failed for copy in queues)

    def _save(self) -> None:
        self._progress.moved = self._moves.moved
        self._state.save(self._progress)
        self._state.save_status(self.status())

    def status(self) -> dict[str, Any]:
        """Return the figures of all topics and groups."""
        topics: dict[str, dict[str, Any]] = {}
        for copy in (*self._copies.values(), *self._retries.values()):
            row = topics.setdefault(copy.source.topic, _empty_row(copy.source.topic))
            row["queues"] += 1
            row["copied"] += copy.position.copied
            row["lag"] += copy.lag
            row["gone"] += copy.position.gone
            row["error"] = row["error"] or copy.error
        for topic, reason in self._refused.items():
            topics.setdefault(topic, _empty_row(topic))["error"] = reason
        return {
            "updated_ms": self._wall_ms(),
            "source": self._source.name,
            "error": self.error,
            "copied": sum(row["copied"] for row in topics.values()),
            "lag": sum(row["lag"] for row in topics.values()),
            "topics": [topics[name] for name in sorted(topics)],
            "unmatched": [
                f"No {kind} of the source matches {pattern}"
                for kind, patterns in self._unmatched.items()
                for pattern in patterns
            ],
            "groups": [state.row() for _, state in sorted(self._moves.states.items())],
        }


def _empty_row(topic: str) -> dict[str, Any]:
    return {"topic": topic, "queues": 0, "copied": 0, "lag": 0, "gone": 0, "error": ""}


async def _pause(stopped: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PAUSE_S):
            await stopped.wait()
    except TimeoutError:
        pass
