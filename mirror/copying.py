"""Copies one queue of the source to one queue of the target, in order.

Guarantee: the position moves on only when the target has acknowledged every message before it.
After a failure, and at a start, the queue of the target is read behind the last known copy: what
arrived there is not copied again. A copy can exist twice if its send failed on this side and its
record appears in the target after that reading: at most one pull (32 messages) for each failure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ..remoting.codes import Reply
from .cluster import PULL_MAX, Broker, UnexpectedError
from .link import RefusedError
from .origin import copied, origin_offset

if TYPE_CHECKING:
    from ..store.format.record import Record

#: Pulls of one turn: then the queue lets others continue, and its position is saved.
PULLS_OF_A_TURN = 32


@dataclass(frozen=True, slots=True)
class Place:
    """A queue of a cluster."""

    topic: str
    broker: str
    queue_id: int


@dataclass(slots=True)
class Position:
    """How far a queue is copied; saved in the state directory."""

    #: Offset of the next message to copy; -1: not known yet.
    following: int = -1
    #: Offset in the target up to which its queue is known: behind the last copy, or later.
    target_end: int = 0
    #: Offset in the target of the first copy; -1: none.
    target_begin: int = -1
    #: Offset in the target of the first message that is no copy from this queue; -1: none.
    other: int = -1
    #: Numbers of messages: copied by this mirror, deleted at the source before they were copied.
    copied: int = 0
    gone: int = 0

    def add(self, offset: int, target_offset: int) -> None:
        """Note a copy, and messages of others in front of it."""
        if target_offset > self.target_end:
            self.add_other(self.target_end)
        self.following = max(self.following, offset + 1)
        self.target_end = max(self.target_end, target_offset + 1)
        if self.target_begin < 0 or target_offset < self.target_begin:
            self.target_begin = target_offset

    def forget(self) -> None:
        """Begin again with the queue of the target: it has lost messages, or is another one."""
        for each in fields(self):
            if each.name not in ("copied", "gone"):
                setattr(self, each.name, each.default)

    def add_other(self, target_offset: int) -> None:
        """Note a message that is no copy from this queue."""
        if self.other < 0 or target_offset < self.other:
            self.other = target_offset


@dataclass(slots=True)
class QueueCopy:
    """One queue of the source."""

    source: Place
    target: Place
    position: Position
    #: Beginning of MIRROR_ORIGIN in the copies (`prefix_of`).
    prefix: bytes
    #: First offset to copy, for a queue that is not copied from its begin.
    begin: int = 0
    #: End of the source's queue when it was last asked.
    end: int = 0
    error: str = ""
    is_located: bool = False

    @property
    def lag(self) -> int:
        """Number of messages to copy."""
        return max(self.end - max(self.position.following, self.begin), 0)

    async def advance(self, source: Broker, target: Broker) -> None:
        """Copy for one turn. Raises LinkError, RefusedError, UnexpectedError, FrameError."""
        try:
            await self.locate(target)
            for _ in range(PULLS_OF_A_TURN):
                if not await self._copy(source, target):
                    break
        except BaseException:
            self.is_located = False
            raise

    async def locate(self, target: Broker) -> None:
        """Read the target's queue behind the last known copy, or all of it if it ends earlier."""
        position = self.position
        while not self.is_located:
            at = position.target_end
            try:
                pulled = await target.pull(self.target.topic, self.target.queue_id, at)
            except RefusedError as error:
                # A retry topic comes into being with its first message.
                if error.code != Reply.TOPIC_NOT_EXIST:
                    raise
                position.forget()
                self.is_located = True
                return
            for record in pulled.records:
                offset = origin_offset(record.properties, self.prefix)
                if offset is None:
                    position.add_other(record.queue_offset)
                    position.target_end = record.queue_offset + 1
                else:
                    position.add(offset, record.queue_offset)
            if pulled.high < at:
                self.position.forget()
                continue
            position.target_end = max(position.target_end, min(pulled.following, pulled.high))
            self.is_located = position.target_end >= pulled.high
            if position.target_end == at and not self.is_located:
                raise UnexpectedError(
                    f"queue {self.target.queue_id} of {self.target.topic} at "
                    f"{target.link.address} ends at {pulled.high} and cannot be read at {at}"
                )

    async def _copy(self, source: Broker, target: Broker) -> bool:
        """Copy what one pull returns; return whether there may be more."""
        position = self.position
        begin = max(position.following, self.begin)
        place = self.source
        pulled = await source.pull(place.topic, place.queue_id, begin, PULL_MAX)
        self.end = pulled.high
        if begin > pulled.high:
            raise UnexpectedError(
                f"queue {place.queue_id} of {place.topic} at {source.link.address} ends at "
                f"{pulled.high}, but {begin} messages of it are copied: its data was lost or "
                "replaced. Begin with a new state directory and new topics"
            )
        if pulled.records:
            await self._send(target, pulled.records)
        first = pulled.records[0].queue_offset if pulled.records else pulled.following
        if first > begin:
            position.gone += first - begin
        position.following = max(begin, pulled.following)
        return position.following < pulled.high

    async def _send(self, target: Broker, records: list[Record]) -> None:
        """Append copies; return when all are acknowledged. Raises LinkError, RefusedError."""
        await target.link.connect()
        prefix = self.prefix.decode()
        place = self.target
        sends = [
            target.link.post(
                target.send(record, place.topic, place.queue_id, copied(record, prefix))
            )
            for record in records
        ]
        answers = await asyncio.gather(
            *(target.link.answer(future) for future in sends), return_exceptions=True
        )
        for record, answer in zip(records, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer.code != Reply.SUCCESS:
                what = f"a message to {place.topic}/{place.queue_id} at {target.link.address}"
                raise RefusedError(what, answer)
            self.position.add(record.queue_offset, int(answer.fields["queueOffset"]))
            self.position.copied += 1


async def translated(copy: QueueCopy, target: Broker, offset: int) -> int:
    """Return where a group continues in the target that has consumed the source up to `offset`.

    It is the offset of the first copy of a message at `offset` or behind it; for an offset that is
    not copied yet, the one behind the last copy. It is never behind a message that a producer sent
    to the target: the group has not consumed it. Raises LinkError, RefusedError, UnexpectedError.
    """
    position = copy.position
    high = position.target_end if position.other < 0 else min(position.other, position.target_end)
    low = min(max(position.target_begin, 0), high)
    if position.target_begin < 0 or offset >= position.following:
        return high
    # Right if the source has no gaps and no copy exists twice.
    guess = position.target_end - (position.following - offset)
    while low < high:
        middle = guess if low <= guess < high else (low + high) // 2
        guess = -1
        origin = await _origin_at(copy, target, middle)
        if origin == offset:
            return middle
        if origin > offset:
            high = middle
        else:
            low = middle + 1
    return low


async def _origin_at(copy: QueueCopy, target: Broker, at: int) -> int:
    """Return the source offset of the copy at an offset of the target."""
    place = copy.target
    pulled = await target.pull(place.topic, place.queue_id, at, 1)
    record = pulled.records[0] if pulled.records else None
    origin = origin_offset(record.properties, copy.prefix) if record is not None else None
    if record is None or record.queue_offset != at or origin is None:
        raise UnexpectedError(f"there is no copy at {at} of {place.topic}/{place.queue_id}")
    return origin
