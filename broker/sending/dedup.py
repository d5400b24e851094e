"""Producer deduplication: requests pass through the window before they are appended.

`dedup_window.py` decides. This shell removes duplicates from a request. For the length of one
window after a start or a change of leader it also queries the store's index for ids that the window
does not hold, so that messages stored by an earlier instance or by the previous leader are not
stored again. Messages that wait for their delivery time or their transaction are stored under
another topic and are not found. Promises: an index that cannot be read costs a duplicate, never a
message.

SendOnce asks the whole index, however old a message is, and then the window, which keeps what is
not dispatched: it stores no duplicate, and refuses while this is not certain.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.properties import property_value
from ...store.format.results import AppendResult, PutStatus
from ..names.lite import PROPERTY
from .dedup_window import SendWindow

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.format.record import Record
    from ...store.message_store import MessageStore
    from ..base.config import BrokerConfig
    from ..metadata.tables import Metadata
    from .send import Prepared

logger = logging.getLogger(__name__)

_LITE = PROPERTY.encode()
#: Lite topics of one parent whose messages with one id are looked at.
_SAME_ID_MAX = 32


class SendDedup:
    """The deduplication of one sender."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, store: MessageStore, metadata: Metadata
    ) -> None:
        self._clock = clock
        self._metadata = metadata
        self._store = store
        self._window_ms = config.message_deduplication_window_ms
        self._limit = config.message_deduplication_max_messages
        self.lead()

    def lead(self) -> None:
        """Start with an empty window; earlier messages are found through the index only."""
        #: Each reservation is settled or released there in the same turn.
        self.window = SendWindow(self._window_ms, self._limit)
        self._since_ms = self._clock.forward_ms()
        #: The window lacks what is before it in the log.
        self._begin = self._store.log_end

    def has_stored(self, topic: str, message_id: str) -> bool:
        """Return whether the index has a message. Raises WireError if it may lack one that the
        window lacks, too."""
        store = self._store
        try:
            if self._stored(topic, message_id, 0):
                return True
        except (OSError, StoreError, ValueError) as error:
            raise WireError(v2.INTERNAL_SERVER_ERROR, f"the index is not read: {error}") from error
        behind = store.index.behind + max(self._begin - store.dispatched_offset, 0)
        if behind:
            text = f"the index is {behind} bytes behind the log: try again later"
            raise WireError(v2.TOO_MANY_REQUESTS, text)
        return False

    def reserve(self, ready: Prepared) -> None:
        """Remove the messages that were sent before from `ready.messages`."""
        now_ms = self._clock.forward_ms()
        extras = ready.extras or [None] * len(ready.ids)
        keys = ready.ids
        if ready.message_type == v2.LITE:  # an id is one of its lite topic
            lites = [property_value(message.properties, _LITE) for message in ready.messages]
            keys = [key + b"\x02" + lite for key, lite in zip(ready.ids, lites, strict=True)]
        if now_ms < self._since_ms + self._window_ms:
            for key in keys:
                if not self.window.contains(ready.topic, key, now_ms):
                    self._load(ready.topic, key, now_ms)
        until = self._store.dispatched_offset
        reservation = self.window.reserve(ready.topic, keys, extras, now_ms, until)
        ready.reservation = reservation
        if reservation.duplicates:
            ready.messages = [ready.messages[index] for index in reservation.fresh]
            ready.size = sum(len(message.body) for message in ready.messages)

    def forget(self, topic: str, message_id: str) -> None:
        """Let a message be sent again: it was recalled, or rolled back."""
        self.window.forget(topic, message_id.encode())

    def forget_topic(self, topic: str) -> None:
        """Let messages with the ids of a deleted topic be stored in a new one of its name."""
        self.window.forget_topic(topic)

    def _load(self, topic: str, key: bytes, now_ms: int) -> None:
        """Add a message of an earlier instance to the window if the index holds it."""
        message_id, _, lite = key.partition(b"\x02")
        wall_ms = self._clock.wall_ms()
        begin_ms = wall_ms - self._window_ms + 1
        try:
            stored = self._stored(topic, message_id.decode(), begin_ms)
        except (OSError, StoreError, ValueError) as error:
            logger.warning("send.index_not_read topic=%s error=%s", topic, error)
            return
        for record in stored:
            if property_value(record.properties, _LITE) != lite:
                continue
            result = AppendResult(
                PutStatus.PUT_OK,
                record.physical_offset,
                record.size,
                record.queue_offset,
                record.store_timestamp_ms,
            )
            age_ms = max(wall_ms - record.store_timestamp_ms, 0)
            self.window.add(topic, key, result, now_ms - age_ms)
            return

    def _stored(self, topic: str, message_id: str, begin_ms: int) -> list[Record]:
        """Return the messages of a topic with an id. Raises OSError, StoreError, ValueError."""
        stored = self._store.queries.query(
            topic, message_id, count_max=_SAME_ID_MAX, begin_ms=begin_ms, index_type="U"
        )
        is_older = self._metadata.is_older
        return [record for record in stored if not is_older(topic, record.physical_offset)]
