"""Messages by key, unique key, tag or id, for tools: `cometmq.v1.Admin/QueryMessages`.

Promises: answers come from this broker's store and hold what is dispatched; older messages are left out
when one answer would become too large, and the answer says so. Reads nothing that a consumer could not
read (store format, sections 4 and 13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.errors import StoreError
from ...store.message_id import OffsetId
from ...store.record import Record
from ..convert import delivery_of, message_item, topic_field

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..node import Node

_TIME_MAX_MS: Final = (1 << 63) - 1
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
        self._node.catch_up()
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
        asked = [
            name for name in ("key", "unique_key", "tag", "message_id") if getattr(request, name)
        ]
        if len(asked) != 1:
            raise WireError(
                v2.BAD_REQUEST, "name exactly one of key, unique_key, tag and message_id"
            )
        if asked[0] == "message_id":
            record = store.message_by_id(request.message_id, request.topic)
            return [] if record is None else [record]
        if not request.topic:
            raise WireError(v2.BAD_REQUEST, "name the topic")
        return store.query(
            request.topic,
            getattr(request, asked[0]),
            count_max=request.count or store.config.max_msgs_num_batch,
            begin_ms=request.begin_ms,
            end_ms=request.end_ms or _TIME_MAX_MS,
            index_type={"key": "K", "unique_key": "U", "tag": "T"}[asked[0]],
        )


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
