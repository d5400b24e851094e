"""Messages by key, unique key, tag or id, for tools: `cometmq.v1.Admin/QueryMessages`.

Promises: answers come from this broker's store and hold what is dispatched; older messages are left out
when one answer would become too large, and the answer says so. Reads nothing that a consumer could not
read (store format, sections 4 and 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.message_id import OffsetId
from ...store.format.record import Record
from ...store.query import TIME_MAX_MS, KeyQuery
from ..messages.convert import delivery_of, message_item, topic_field

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..node import Node

#: By field of a request.
_INDEX_TYPES: Final = {"key": "K", "unique_key": "U", "tag": "T"}
#: Bytes of records in one answer (but one message always goes): clients take 4 MiB by default.
_ANSWER_BYTES_MAX: Final = 3 << 20


class MessageQueries:
    """The handler."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def query_messages(
        self, request: v1.QueryMessagesRequest, ctx: RequestContext
    ) -> v1.QueryMessagesResponse:
        """The newest messages that match, oldest first."""
        self._node.pump.catch_up()
        try:
            records = self._find(request)
        except StoreError as error:
            raise WireError(v2.UNSUPPORTED, str(error)) from None
        except OSError as error:
            text = f"the index cannot be read: {error}"
            raise WireError(v2.INTERNAL_SERVER_ERROR, text) from error
        answer = v1.QueryMessagesResponse(
            code=v2.OK, message="OK", index_behind=self._node.store.index_behind
        )
        room = _ANSWER_BYTES_MAX
        for record in reversed(records):
            room -= record.size
            if room < 0 and answer.messages:
                answer.left_out = True
                break
            answer.messages.insert(0, _found(record))
        return answer

    def _find(self, request: v1.QueryMessagesRequest) -> list[Record]:
        store = self._node.store
        if sum(bool(getattr(request, name)) for name in (*_INDEX_TYPES, "message_id")) != 1:
            raise WireError(
                v2.BAD_REQUEST, "name exactly one of key, unique_key, tag and message_id"
            )
        if request.message_id:
            record = store.message_by_id(request.message_id, request.topic)
            return [] if record is None else [record]
        if not request.topic:
            raise WireError(v2.BAD_REQUEST, "name the topic")
        asked = key_query(request, store.config.max_msgs_num_batch)
        return [] if asked is None else store.query_by(asked)


def key_query(request: v1.QueryMessagesRequest, most: int) -> KeyQuery | None:
    """What a request asks the index for; None: nothing. `most` messages where it does not say how many."""
    for name, index_type in _INDEX_TYPES.items():
        key = getattr(request, name)
        if key:
            times = request.begin_ms, request.end_ms or TIME_MAX_MS
            return KeyQuery(request.topic, key, request.count or most, *times, index_type)
    if request.message_id and request.topic:
        return KeyQuery(request.topic, request.message_id, 1, index_type="U")
    return None


def _found(record: Record) -> v1.FoundMessage:
    topic = topic_field(v2.Resource(name=record.topic))
    item = message_item(topic, delivery_of(record, record.queue_id), None)
    return v1.FoundMessage(
        message=_content(item),
        offset_id=str(OffsetId(record.store_host, record.physical_offset)),
        physical_offset=record.physical_offset,
        size=record.size,
    )


def _content(item: bytes) -> bytes:
    """The message of a stream's item: what follows the tag and the length."""
    position = 1
    while item[position] & 0x80:
        position += 1
    return item[position + 1 :]
