"""Producer deduplication: a message id that was sent inside the window is not stored again.

Opt-in (`messageDeduplicationEnable`; the reference stores duplicates, broker semantics, section 9.5). A
producer that did not see the answer, and sends again, gets the answer of the first time. Promises: the
window is one of time and of count, whichever ends first, so that memory is bounded; a message that was
not stored is not remembered; two of the same id in one turn are one. Pure: the time is passed in. In
memory; `dedup.py` finds in the log what was sent before a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...store.format.results import AppendResult, PutStatus

if TYPE_CHECKING:
    from .answer import Special

_Key = tuple[str, bytes]
"""Topic and message id."""


@dataclass(slots=True)
class Sent:
    """A message that was sent once; `result` is None until the log has answered."""

    since_ms: int
    special: Special | None = None
    result: AppendResult | None = None


@dataclass(slots=True)
class Claim:
    """The messages of one request, as the window sees them."""

    sent: list[Sent]
    """One a message, in the order of the request."""
    fresh: list[int]
    """Positions of those that are to be stored."""
    keys: list[_Key]

    @property
    def repeats(self) -> int:
        """How many were sent before."""
        return len(self.sent) - len(self.fresh)


class SendWindow:
    """What was sent lately, by topic and message id."""

    def __init__(self, window_ms: int, limit: int) -> None:
        self._window_ms = window_ms
        self._limit = limit
        self._sent: OrderedDict[_Key, Sent] = OrderedDict()
        self._open = 0
        """Claims that are not settled yet."""

    def __len__(self) -> int:
        return len(self._sent)

    def knows(self, topic: str, message_id: bytes, now_ms: int) -> bool:
        """Whether the message was sent inside the window."""
        sent = self._sent.get((topic, message_id))
        return sent is not None and sent.since_ms > now_ms - self._window_ms

    def remember(self, topic: str, message_id: bytes, result: AppendResult) -> None:
        """A message that was stored before the window began; it leaves with the oldest."""
        key = (topic, message_id)
        self._sent[key] = Sent(result.store_timestamp_ms, None, result)
        self._sent.move_to_end(key, last=False)

    def claim(
        self, topic: str, ids: Sequence[bytes], specials: Sequence[Special | None], now_ms: int
    ) -> Claim:
        """Tell the new messages of a request from those sent before; they count as sent from now on.

        `settle` or `forget` must follow in the same turn.
        """
        self._expire(now_ms)
        self._open += 1
        claim = Claim([], [], [])
        for index, message_id in enumerate(ids):
            key = (topic, message_id)
            sent = self._sent.get(key)
            if sent is None:
                sent = self._sent[key] = Sent(now_ms, specials[index])
                claim.fresh.append(index)
            claim.sent.append(sent)
            claim.keys.append(key)
        return claim

    def settle(self, claim: Claim, results: Sequence[AppendResult]) -> None:
        """The log's answers to the fresh messages, in order."""
        for index, result in zip(claim.fresh, results, strict=True):
            sent = claim.sent[index]
            sent.result = result
            if result.status is not PutStatus.PUT_OK:
                self._drop(claim.keys[index], sent)
        self._closed()

    def forget(self, claim: Claim) -> None:
        """Nothing of the request was stored."""
        for index in claim.fresh:
            self._drop(claim.keys[index], claim.sent[index])
        self._closed()

    def _closed(self) -> None:
        """A turn's last claim: forget the oldest of too many."""
        self._open -= 1
        while not self._open and len(self._sent) > self._limit:
            self._sent.popitem(last=False)

    def _drop(self, key: _Key, sent: Sent) -> None:
        if self._sent.get(key) is sent:
            del self._sent[key]

    def _expire(self, now_ms: int) -> None:
        """Forget what is too old; the oldest stand first."""
        sent = self._sent
        until_ms = now_ms - self._window_ms
        while sent:
            key, oldest = next(iter(sent.items()))
            if oldest.since_ms > until_ms:
                return
            del sent[key]
