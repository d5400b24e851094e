"""Window of sent message ids: a message id that was sent inside the window is not stored again.

Opt-in (`messageDeduplicationEnable`); the reference stores duplicates
(docs/formats/broker-semantics.md, section 9.5). A producer that missed the answer and sends again
gets the first answer. Promises: the window is limited in time and in number, so that memory is
bounded; a message that was not stored is not remembered; two messages of one turn with the same id
are stored once. Pure: the time is passed in. In memory; `dedup.py` reads what was sent before a
restart from the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ...store.format.results import AppendResult, PutStatus

if TYPE_CHECKING:
    from .answer import ReceiptExtras

#: Log offset behind every message.
_ALL = 1 << 63
#: Topic and message id.
_Key = tuple[str, bytes]


class SentMessage(Struct):
    """One message in the window; `result` is None until it is appended."""

    since_ms: int
    extras: ReceiptExtras | None = None
    result: AppendResult | None = None


class Reservation(Struct):
    """The messages of one request, divided into fresh ones and duplicates."""

    #: One for each message, in the order of the request.
    sent: list[SentMessage]
    #: Positions of the messages to store.
    fresh: list[int]
    keys: list[_Key]

    @property
    def duplicates(self) -> int:
        """Number of messages that were sent before."""
        return len(self.sent) - len(self.fresh)


class SendWindow:
    """Recently sent messages by topic and message id."""

    def __init__(self, window_ms: int, limit: int) -> None:
        self._window_ms = window_ms
        self._limit = limit
        self._sent: OrderedDict[_Key, SentMessage] = OrderedDict()
        #: Reservations that are neither settled nor released.
        self._open = 0

    def __len__(self) -> int:
        return len(self._sent)

    def contains(self, topic: str, message_id: bytes, now_ms: int) -> bool:
        """Return whether the message was sent inside the window."""
        sent = self._sent.get((topic, message_id))
        return sent is not None and sent.since_ms > now_ms - self._window_ms

    def add(self, topic: str, message_id: bytes, result: AppendResult, since_ms: int) -> None:
        """Add a message that was stored before the window started, as the oldest entry."""
        key = (topic, message_id)
        self._sent[key] = SentMessage(since_ms, None, result)
        self._sent.move_to_end(key, last=False)

    def forget(self, topic: str, message_id: bytes) -> None:
        """Remove a message; not between `reserve` and `settle`."""
        self._sent.pop((topic, message_id), None)

    def forget_topic(self, topic: str) -> None:
        """Remove the messages of a topic; not between `reserve` and `settle`."""
        for key in [key for key in self._sent if key[0] == topic]:
            del self._sent[key]

    def reserve(
        self,
        topic: str,
        ids: Sequence[bytes],
        extras: Sequence[ReceiptExtras | None],
        now_ms: int,
        dispatched: int = _ALL,
    ) -> Reservation:
        """Find the duplicates of a request and count its other messages as sent.

        The index has what is before the log offset `dispatched`; the window keeps the rest.
        `settle` or `release` must follow in the same turn.
        """
        self._expire(now_ms, dispatched)
        self._open += 1
        reservation = Reservation([], [], [])
        for index, message_id in enumerate(ids):
            key = (topic, message_id)
            sent = self._sent.get(key)
            if sent is None:
                sent = self._sent[key] = SentMessage(now_ms, extras[index])
                reservation.fresh.append(index)
            reservation.sent.append(sent)
            reservation.keys.append(key)
        return reservation

    def settle(self, reservation: Reservation, results: Sequence[AppendResult]) -> None:
        """Record the append results of the fresh messages, in their order."""
        for index, result in zip(reservation.fresh, results, strict=True):
            sent = reservation.sent[index]
            sent.result = result
            if result.status is not PutStatus.PUT_OK:
                self._drop(reservation.keys[index], sent)
        self._closed()

    def release(self, reservation: Reservation) -> None:
        """Drop a reservation of which nothing was stored."""
        for index in reservation.fresh:
            self._drop(reservation.keys[index], reservation.sent[index])
        self._closed()

    def _closed(self) -> None:
        """Drop the oldest entries above the limit after the last reservation of a turn."""
        self._open -= 1
        while not self._open and len(self._sent) > self._limit:
            self._sent.popitem(last=False)

    def _drop(self, key: _Key, sent: SentMessage) -> None:
        if self._sent.get(key) is sent:
            del self._sent[key]

    def _expire(self, now_ms: int, dispatched: int) -> None:
        """Drop entries older than the window that are dispatched; the oldest come first."""
        sent = self._sent
        until_ms = now_ms - self._window_ms
        while sent:
            key, oldest = next(iter(sent.items()))
            stored = oldest.result
            if oldest.since_ms > until_ms or (stored and stored.physical_offset >= dispatched):
                return
            del sent[key]
