"""Offsets of queues and consumer groups for classic clients (docs/formats/remoting.md, section 12).

An offset of a group that does not exist is 0 if the queue still has its first message in memory,
else QUERY_NOT_FOUND: then the client begins where its `consumeFromWhere` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.headers import (
    QueryConsumerOffset,
    QueueOfTopic,
    SearchOffset,
    UpdateConsumerOffset,
)
from ...store.format.record import decode_delivery
from .base.errors import known_group, known_topic

if TYPE_CHECKING:
    from ...remoting.connection import Connection, Handler
    from ...store.message_store import MessageStore
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump

_NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class ClassicOffsets:
    """Handlers of the requests for offsets."""

    def __init__(
        self,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        pump: DispatchPump,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._pump = pump

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Request.QUERY_CONSUMER_OFFSET: self.query,
            Request.UPDATE_CONSUMER_OFFSET: self.update,
            Request.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            Request.GET_MAX_OFFSET: self.max,
            Request.GET_MIN_OFFSET: self.min,
            Request.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, command: Command, _: Connection) -> Command:
        """Answer QUERY_CONSUMER_OFFSET."""
        header = command.header(QueryConsumerOffset)
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        offset = self._offsets.get(topic, group, queue_id)
        if offset is None and header.set_zero_if_not_found and self._has(header):
            offset = self._start(topic, queue_id)
        if offset is None:
            return reply(Reply.QUERY_NOT_FOUND, _NOT_FOUND)
        return _number("offset", offset)

    def _start(self, topic: str, queue_id: int) -> int | None:
        """Return where a group starts in a queue: at the first message, if nothing of the queue is
        gone or old. Else None, and its client decides: most start at the end."""
        store = self._store
        first = store.min_offset(topic, queue_id)
        if first == store.max_offset(topic, queue_id):
            return None
        known = self._metadata.topic(topic)
        begin = 0 if known is None else known.first_offsets.get(queue_id, 0)
        is_whole = first <= begin and not store.reader.is_cold(topic, queue_id, first)
        return first if is_whole else None

    def update(self, command: Command, _: Connection) -> Command:
        """Answer UPDATE_CONSUMER_OFFSET."""
        header = command.header(UpdateConsumerOffset)
        group = known_group(self._metadata, header.consumer_group)
        known_topic(self._metadata, header.topic)
        if not self._has(header) or not self.commit(
            header.topic, group, header.queue_id, header.commit_offset
        ):
            return reply(Reply.INVALID_PARAMETER, "the offset is outside of the queue")
        return reply(Reply.SUCCESS)

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Commit an offset; return False if it is outside of the queue."""
        if not 0 <= offset <= self._store.max_offset(topic, queue_id):
            return False
        if self._offsets.get(topic, group, queue_id) != offset:
            self._offsets.commit(topic, group, queue_id, offset)
        return True

    def search(self, command: Command, _: Connection) -> Command:
        """Answer SEARCH_OFFSET_BY_TIMESTAMP."""
        header = command.header(SearchOffset)
        if not self._has(header):
            return _number("offset", 0)
        upper = header.boundary.lower() == "upper"
        queue = header.topic, header.queue_id
        return _number(
            "offset", self._store.reader.search_offset(*queue, header.timestamp_ms, upper)
        )

    def max(self, command: Command, _: Connection) -> Command:
        """Answer GET_MAX_OFFSET."""
        header = command.header(QueueOfTopic)
        has = self._has(header)
        return _number("offset", self._store.max_offset(*_queue(header)) if has else 0)

    def min(self, command: Command, _: Connection) -> Command:
        """Answer GET_MIN_OFFSET."""
        header = command.header(QueueOfTopic)
        has = self._has(header)
        return _number("offset", self._store.min_offset(*_queue(header)) if has else 0)

    def earliest(self, command: Command, _: Connection) -> Command:
        """Answer GET_EARLIEST_MSG_STORETIME: -1 for an empty queue."""
        header = command.header(QueueOfTopic)
        if not self._has(header):
            return _number("timestamp", -1)
        first = self._store.min_offset(*_queue(header))
        records = self._store.get(header.topic, header.queue_id, first, 1, 1).records
        time_ms = decode_delivery(records[0].data).store_timestamp_ms if records else -1
        return _number("timestamp", time_ms)

    def _has(
        self, queue: QueueOfTopic | SearchOffset | QueryConsumerOffset | UpdateConsumerOffset
    ) -> bool:
        """Return whether the topic has the queue, and make its newest messages visible."""
        self._pump.catch_up()
        topic = self._metadata.topic(queue.topic)
        return topic is not None and 0 <= queue.queue_id < max(
            topic.read_queues, topic.write_queues
        )


def _queue(header: QueueOfTopic) -> tuple[str, int]:
    return header.topic, header.queue_id


def _number(name: str, value: int) -> Command:
    return reply(Reply.SUCCESS, fields={name: str(value)})
