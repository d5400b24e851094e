"""Messages that a classic consumer could not process: copied to the retry topic with a delay.

Source: docs/formats/remoting.md, section 13. The consumer names the position of the record in the
log. The copy waits at a delay level, then lies in `%RETRY%group`; after the last attempt it goes to
the dead letters. The answer is sent when the copy is as durable as a sent message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto import v2
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import SendBack
from ...store.format.message_id import OffsetId
from ...store.format.properties import encode_properties
from ...store.format.record import Message, Record
from ...store.format.results import StoredRecord
from ..messages.stored_properties import in_bucket_order
from ..names.retry import NOT_COPIED, POP_MARKS
from ..pop.dead_letter import Origin, is_dead_letter_topic
from ..sending.send import Prepared, PreparedSend
from .base.errors import context_of, known_group
from .queries import clients_record
from .send import answer_of

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.counters import Counters
    from ..delay.delayed import DelayedMessages
    from ..metadata.tables import Metadata
    from ..pop.dead_letter import DeadLetters, GroupTopics
    from ..sending.sender import Sender

#: The level of the first retry, ten seconds, if the client names none.
_FIRST_LEVEL = 3
_BUCKETS = 128


class SendBacks:
    """Handler of CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        *,
        store: MessageStore,
        metadata: Metadata,
        sender: Sender,
        delayed: DelayedMessages,
        group_topics: GroupTopics,
        dead_letters: DeadLetters,
        counters: Counters,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._sender = sender
        self._delayed = delayed
        self._group_topics = group_topics
        self._dead_letters = dead_letters
        self._counters = counters

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {Request.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, command: Command, peer: Connection) -> Any:
        """Answer CONSUMER_SEND_MSG_BACK with a future. Raises WireError, RemotingError."""
        header = command.header(SendBack)
        group = known_group(self._metadata, header.group)
        record = self._record(header.offset)
        if self._metadata.is_older(_first_topic(record), record.physical_offset):
            return reply(Reply.SUCCESS)  # its topic was deleted: a refusal makes the client send it
        known = self._metadata.group(group)
        assert known is not None
        limit = header.max_reconsume_times
        if limit is None:
            limit = known.max_attempts - 1
        if header.delay_level < 0 or record.reconsume_times >= limit:
            copy = self._dead_letter(record, group)
        else:
            copy = self._retry(record, group, header.delay_level)
        self._counters.sent_back[_first_topic(record), group] += 1
        ready = Prepared([copy], [b"copy"], copy.topic, v2.NORMAL, len(copy.body))
        ctx = context_of(peer, group, len(copy.body))
        return answer_of(self._sender.add(PreparedSend(ready, ctx)), None, {})

    def _record(self, offset: int) -> Record:
        """Return the client's message at a position of the log. Raises RemotingError."""
        record = clients_record(self._store, offset)
        if record is None:
            raise RemotingError(Reply.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return record

    def _retry(self, record: Record, group: str, level: int) -> Message:
        target = f"%RETRY%{group}"
        self._group_topics.ensure(target)
        properties = dict(record.properties_dict)
        for name in (*NOT_COPIED, *POP_MARKS):
            properties.pop(name, None)
        properties.setdefault("RETRY_TOPIC", record.topic)
        offset_id = OffsetId(record.store_host, record.physical_offset)
        properties.setdefault("ORIGIN_MESSAGE_ID", str(offset_id))
        properties["WAIT"] = "false"
        properties["DELAY"] = str(level or _FIRST_LEVEL + record.reconsume_times)
        copy = Message(
            target,
            0,
            record.body,
            encode_properties(in_bucket_order(properties, _BUCKETS)),
            record.flag,
            record.sys_flag,
            record.born_timestamp_ms,
            record.born_host,
            self._sender.store_host,
            record.reconsume_times + 1,
        )
        return self._delayed.record(copy, properties)

    def _dead_letter(self, record: Record, group: str) -> Message:
        if is_dead_letter_topic(record.topic):
            raise RemotingError(
                Reply.SYSTEM_ERROR, f"{record.topic} holds dead letters: they are not moved again"
            )
        topic = _first_topic(record)
        data = self._store.record_at(record.physical_offset)
        stored = StoredRecord(record.queue_offset, record.physical_offset, data, 0)
        origin = Origin(topic, record.topic, group)
        copy = self._dead_letters.copy(origin, stored, record.reconsume_times)
        self._counters.dead[topic, group] += 1
        return copy


def _first_topic(record: Record) -> str:
    """Return the topic that a message was sent to, before its retries."""
    return record.properties_dict.get("RETRY_TOPIC", record.topic)
