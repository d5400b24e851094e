"""`cometmq.v1.Admin/QueryMessages`: messages by key, unique key, tag or id.

Promises: answers come from this broker's store and contain dispatched messages only; records of the
metadata log, which has the sealed secrets of users, are in no answer; when an answer would become
too large it leaves out the oldest messages and sets `left_out`
(docs/formats/store-format.md, sections 4 and 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.message_id import OffsetId
from ...store.format.record import Record
from ...store.format.topic_names import META_TOPIC
from ..messages.convert import delivery_of, sized_item, topic_field
from ..messages.key_query import INDEX_TYPES, key_query
from ..metadata.incarnations import is_left_over

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..metadata.tables import Metadata
    from ..visible.dispatch_pump import DispatchPump

#: Bytes of records in one answer; one message of any size always fits. Clients accept 4 MiB.
_ANSWER_BYTES_MAX: Final = 3 << 20


class MessageQueries:
    """The handler."""

    def __init__(self, store: MessageStore, metadata: Metadata, pump: DispatchPump) -> None:
        self._store = store
        self._metadata = metadata
        self._pump = pump

    def query_messages(
        self, request: v1.QueryMessagesRequest, ctx: RequestContext
    ) -> v1.QueryMessagesResponse:
        """The newest messages that match, oldest first; by key without those of a deleted topic
        of the name."""
        self._pump.catch_up()
        try:
            records = self._find(request)
        except StoreError as error:
            raise WireError(v2.UNSUPPORTED, str(error)) from None
        except OSError as error:
            text = f"the index cannot be read: {error}"
            raise WireError(v2.INTERNAL_SERVER_ERROR, text) from error
        answer = v1.QueryMessagesResponse(
            code=v2.OK, message="OK", index_behind=self._store.index.behind
        )
        room = _ANSWER_BYTES_MAX
        found: list[v1.FoundMessage] = []
        for record in reversed(records):
            if room < record.size and found:
                answer.left_out = True
                break
            item, size = _found(record)
            room -= size
            found.append(item)
        answer.messages.extend(reversed(found))
        return answer

    def _find(self, request: v1.QueryMessagesRequest) -> list[Record]:
        store = self._store
        if sum(bool(getattr(request, name)) for name in (*INDEX_TYPES, "message_id")) != 1:
            raise WireError(
                v2.BAD_REQUEST, "name exactly one of key, unique_key, tag and message_id"
            )
        if request.message_id:
            record = store.queries.by_id(request.message_id, request.topic)
            return [] if record is None or record.topic == META_TOPIC else [record]
        if not request.topic:
            raise WireError(v2.BAD_REQUEST, "name the topic")
        if request.topic == META_TOPIC:
            raise WireError(v2.FORBIDDEN, f"{META_TOPIC} is not searched")
        asked = key_query(request, store.config.max_msgs_num_batch)
        found = [] if asked is None else store.queries.find(asked)
        metadata, topic = self._metadata, request.topic
        return [
            one
            for one in found
            if not is_left_over(metadata, topic, one.properties, one.physical_offset)
        ]


def _found(record: Record) -> tuple[v1.FoundMessage, int]:
    """Return a message of the answer, and the bytes by which it fills the answer."""
    topic = topic_field(v2.Resource(name=record.topic))
    item, size = sized_item(topic, delivery_of(record, record.queue_id), None)
    found = v1.FoundMessage(
        message=_content(item),
        offset_id=str(OffsetId(record.store_host, record.physical_offset)),
        physical_offset=record.physical_offset,
        size=record.size,
    )
    return found, size


def _content(item: bytes) -> bytes:
    """Return the message of a stream item: the bytes behind tag and length."""
    position = 1
    while item[position] & 0x80:
        position += 1
    return item[position + 1 :]
