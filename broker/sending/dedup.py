"""The shell of producer deduplication: requests go through the window before they go to the log.

`dedup_window.py` decides; this leaves the repeated messages out of a request, and for as long as the window is,
after a start or a change of leader, asks the store's index about ids that the window does not know: what
an earlier life, or the leader before, has stored is not stored again. Messages that wait for their time
or their transaction lie elsewhere then and are not found. Promises: an index that cannot be read costs a
duplicate, never a message.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...store.format.errors import StoreError
from ...store.format.results import AppendResult, PutStatus
from .dedup_window import Claim, SendWindow

if TYPE_CHECKING:
    from ..node import Node
    from .fast_path import Prepared

log = logging.getLogger(__name__)


class SendDedup:
    """Of one node's sender."""

    def __init__(self, node: Node) -> None:
        config = node.config
        self._node = node
        self._window_ms = config.message_deduplication_window_ms
        self._limit = config.message_deduplication_max_messages
        self.lead()

    def lead(self) -> None:
        """What was sent before is only in the log: of an earlier life, or of another leader."""
        self._window = SendWindow(self._window_ms, self._limit)
        self._since_ms = self._node.clock.wall_ms()

    def claim(self, ready: Prepared, now_ms: int) -> None:
        """Leave out the messages that were sent before."""
        specials = ready.specials or [None] * len(ready.ids)
        if now_ms < self._since_ms + self._window_ms:
            for message_id in ready.ids:
                if not self._window.knows(ready.topic, message_id, now_ms):
                    self._recall(ready.topic, message_id, now_ms)
        ready.claim = claim = self._window.claim(ready.topic, ready.ids, specials, now_ms)
        if claim.repeats:
            ready.messages = [ready.messages[index] for index in claim.fresh]
            ready.size = sum(len(message.body) for message in ready.messages)

    def settle(self, claim: Claim, results: list[AppendResult]) -> None:
        """The log's answers to the fresh messages, in order."""
        self._window.settle(claim, results)

    def forget(self, claim: Claim) -> None:
        """Nothing of the request was stored."""
        self._window.forget(claim)

    def _recall(self, topic: str, message_id: bytes, now_ms: int) -> None:
        """Take a message of an earlier life into the window, if the index knows it."""
        begin_ms = now_ms - self._window_ms + 1
        try:
            found = self._node.store.queries.query(
                topic, message_id.decode(), count_max=1, begin_ms=begin_ms, index_type="U"
            )
        except (OSError, StoreError, ValueError) as error:
            log.warning("send.index_not_read topic=%s error=%s", topic, error)
            return
        for record in found:
            result = AppendResult(
                PutStatus.PUT_OK,
                record.physical_offset,
                record.size,
                record.queue_offset,
                record.store_timestamp_ms,
            )
            self._window.remember(topic, message_id, result)
