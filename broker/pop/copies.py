"""Copies of delivered messages in the retry and dead-letter topics of their group.

A message that is not in flight any more was acknowledged, or its invisible time ended and it was
copied. Its handle tells which by its own time, but a handle from before a change that shortened
the invisible time does not: then the index tells, also after a restart and at the next leader.
Without an index (`messageIndexEnable=false`), or for a message without UNIQ_KEY, it is not known,
and counts as acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.format.errors import StoreError
from ...store.format.properties import property_value
from ...store.format.record import decode_delivery
from ..names.delivery import Outcome
from .dead_letter import dead_letter_topic
from .group import PopGroup

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.message_store import MessageStore
    from ..names.handles import ReceiptHandle
    from .subscription import Core

#: Messages of one request that are looked up, each about 0.1 ms: as many as a client receives at
#: once. What is above, or not indexed yet, counts as copied, so that OK is never wrong.
LOOKED_UP_MAX = 32
#: A pop time may be ahead of the clock, when a message has several in a millisecond.
_AHEAD_MS = 1_000


class Copies:
    """Finds copies for one request."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._left = LOOKED_UP_MAX
        self._behind_ms = _AHEAD_MS + clock.forward_ms() - clock.wall_ms()

    def is_expired(
        self,
        outcome: Outcome,
        core: Core,
        topic: str,
        handle: ReceiptHandle,
        *,
        dead_letters: bool = True,
    ) -> bool:
        """Return whether a handle, whose message is in this topic, is of no use: by the core's
        outcome, or because the message was copied after its delivery.

        Raises OSError.
        """
        if outcome is not Outcome.CONSUMED:
            return outcome is Outcome.STALE
        targets = [dead_letter_topic(core.group)] if dead_letters else []
        if isinstance(core, PopGroup):
            targets += core.topics[1:]
        targets = [target for target in targets if self._store.max_offset(target, 0)]
        if not targets:
            return False
        self._left -= 1
        return self._left < 0 or self._is_in(targets, topic, handle)

    def _is_in(self, targets: list[str], topic: str, handle: ReceiptHandle) -> bool:
        records = self._store.get(topic, handle.queue_id, handle.offset, 1).records
        if not records or records[0].queue_offset != handle.offset:
            return False
        key = property_value(decode_delivery(records[0].data).properties, b"UNIQ_KEY")
        if not key:
            return False
        text, behind = key.decode("utf-8", "replace"), records[0].physical_offset + 1
        since_ms = handle.pop_ms - self._behind_ms
        try:
            for target in targets:
                found = self._store.queries.has_since(target, text, since_ms, behind)
                if found is None:
                    self._left = 0  # each look-up would index for 50 ms
                if found is not False:
                    return True
        except StoreError:  # there is no index
            return False
        return False
