"""Queries of classic clients: messages by key, by unique id, and by position in the log.

Source: docs/formats/remoting.md, section 12. The index and its limits are those of the store's
queries. The answer holds records as they are in the log, the newest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import QueryMessage, ViewMessage
from ...store.format.errors import StoreError
from ...store.format.record import Record, decode
from ...store.query import TIME_MAX_MS, KeyQuery
from ..messages.validation import OPEN_TOPICS, SEARCHED_TOPICS
from ..metadata.incarnations import is_left_over
from ..metadata.tables import is_system_topic

if TYPE_CHECKING:
    from collections.abc import Container

    from ...store.message_store import MessageStore
    from ..metadata.tables import Metadata
    from ..visible.dispatch_pump import DispatchPump

#: Messages and bytes of an answer; the first message may be larger.
_COUNT_MAX = 64
_BYTES_MAX = 4 << 20


class ClassicQueries:
    """Handlers of QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, store: MessageStore, metadata: Metadata, pump: DispatchPump) -> None:
        self._store = store
        self._metadata = metadata
        self._pump = pump

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {Request.QUERY_MESSAGE: self.query, Request.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, command: Command, _: Connection) -> Command:
        """Answer QUERY_MESSAGE."""
        header = command.header(QueryMessage)
        self._pump.catch_up()
        if is_system_topic(header.topic) and header.topic not in SEARCHED_TOPICS:
            return reply(Reply.QUERY_NOT_FOUND, f"{header.topic} is not searched")
        asked = KeyQuery(
            header.topic,
            header.key,
            min(max(header.max_messages, 1), _COUNT_MAX),
            max(header.begin_timestamp_ms, 0),
            min(max(header.end_timestamp_ms, 0), TIME_MAX_MS),
            "U" if header.unique or header.index_type == "U" else "K",
        )
        try:
            found = self._store.queries.find(asked)
        except (StoreError, OSError) as error:
            raise RemotingError(Reply.SYSTEM_ERROR, f"the index: {error}") from None
        found = [
            one
            for one in found
            if not is_left_over(self._metadata, asked.topic, one.properties, one.physical_offset)
        ]
        if not found:
            return reply(
                Reply.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        parts: list[bytes] = []
        size = 0
        for record in reversed(found):
            if parts and size + record.size > _BYTES_MAX:
                break
            parts.append(self._store.record_at(record.physical_offset))
            size += record.size
        parts.reverse()  # the newest ones that fit, in the order of the log
        fields = {
            "indexLastUpdateTimestamp": str(found[-1].store_timestamp_ms),
            "indexLastUpdatePhyoffset": str(found[-1].physical_offset),
        }
        return reply(Reply.SUCCESS, fields=fields, body=b"".join(parts))

    def view(self, command: Command, _: Connection) -> Command:
        """Answer VIEW_MESSAGE_BY_ID."""
        offset = command.header(ViewMessage).offset
        if shown_record(self._store, offset) is None:
            remark = f"can not find message by the offset, {offset}"
            return reply(Reply.SYSTEM_ERROR, remark)
        return reply(Reply.SUCCESS, body=self._store.record_at(offset))


def clients_record(store: MessageStore, offset: int) -> Record | None:
    """Return the client's message that begins at a position of the log, or None."""
    return _record(store, offset, OPEN_TOPICS)


def shown_record(store: MessageStore, offset: int) -> Record | None:
    """Return the message that begins at a position of the log, also one that waits, or None."""
    return _record(store, offset, SEARCHED_TOPICS)


def _record(store: MessageStore, offset: int, system_topics: Container[str]) -> Record | None:
    try:
        record = decode(store.record_at(offset))
    except (StoreError, ValueError, OSError):
        return None
    is_hidden = is_system_topic(record.topic) and record.topic not in system_topics
    return None if record.physical_offset != offset or is_hidden else record
