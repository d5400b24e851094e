"""Sends of classic clients: the records that they make of a message, through the broker's sender.

Source: docs/formats/remoting.md, section 11. Flag, body and born time are stored as sent; the
properties get MSG_REGION, TRACE_ON, CLUSTER (not in a batch) and, if missing, UNIQ_KEY. A delayed
message and a transactional one are stored as those of the gRPC protocol are.
"""

from __future__ import annotations

import asyncio
import re
import struct
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ...proto import v2
from ...proto.errors import WireError
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import SendMessage
from ...store.format.message_id import OffsetId
from ...store.format.properties import (
    DELAY,
    decode_properties,
    encode_properties,
    is_delayed,
    property_value,
)
from ...store.format.record import PROPERTIES_BYTES_MAX, Message
from ...store.timer.rules import (
    DELETE_KEY,
    OUT_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    REQUESTED,
    TIMER_TOPIC,
)
from ..delay.delayed import SENT_BUCKETS
from ..messages.stored_properties import in_bucket_order
from ..messages.validation import check_classic_topic, check_group
from ..metadata.tables import TEMPLATE_TOPIC
from ..names.recall_handle import RecallHandle
from ..names.retry import ORIGIN_GROUP, POP_MARKS, is_retry_topic, origin_topic
from ..pop.dead_letter import dead_letter_topic
from ..sending.answer import ANSWER_OK, ReceiptExtras
from ..sending.crate_planner import ClassicFormat
from ..sending.send import Prepared, PreparedSend, packed_host
from .base.bodies import sent_header
from .base.errors import context_of, no_topic, reply_code, with_codes
from .taken_send import TakenSend, answer_parts

if TYPE_CHECKING:
    from ...store.format.results import AppendResult
    from ..base.config import BrokerConfig
    from ..base.runtime import Runtime
    from ..delay.delayed import DelayedMessages
    from ..metadata.tables import Metadata, Topic
    from ..pop.dead_letter import GroupTopics
    from ..sending.sender import Sender
    from ..transactions.service import Transactions
    from .locks import QueueLocks

#: Compressed body, multiple tags, kind of compression: the others are the broker's.
_KEPT_BITS = 0x703
#: Messages of one batch: about 50 ms of the event loop.
BATCH_MAX = 4_096
#: total size, magic, checksum, flag, body length
_BATCHED = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
_UNIQUE = "UNIQ_KEY"
#: Marks a transactional message.
_PREPARED = "TRAN_MSG"
#: Properties that only the broker writes; a client's are dropped.
_DROPPED = frozenset(
    (
        *("POP_CK", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "__CRC32#"),
        *(REAL_TOPIC, REAL_QUEUE, OUT_MS, DELETE_KEY),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
    )
)
_MAYBE_DROPPED = re.compile(b"|".join(re.escape(name.encode()) for name in _DROPPED))
_RETRY_PREFIX = "%RETRY%"
#: Outcomes with which the message is stored: the response has the fields of a success.
_STORED = (Reply.SUCCESS, Reply.FLUSH_DISK_TIMEOUT, Reply.FLUSH_SLAVE_TIMEOUT)


class Positions(Struct):
    """Where the messages of one request were stored."""

    queue_id: int
    store_host: bytes
    ids: list[str] = field(default_factory=list)
    first_queue_offset: int = -1

    def stored(self, result: AppendResult) -> str:
        if not self.ids:
            self.first_queue_offset = result.queue_offset
        self.ids.append(str(OffsetId(self.store_host, result.physical_offset)))
        return ""

    def add_to(self, fields: dict[str, str]) -> dict[str, str]:
        """Add the fields of a response; return them."""
        fields["queueId"] = str(self.queue_id)
        fields["msgId"] = ",".join(self.ids)
        fields["queueOffset"] = str(self.first_queue_offset)
        return fields


class Sent(Struct):
    """What the response to a request tells."""

    positions: Positions
    fields: dict[str, str]


class ClassicSends:
    """Handlers of sends."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        metadata: Metadata,
        sender: Sender,
        delayed: DelayedMessages,
        transactions: Transactions,
        group_topics: GroupTopics,
        locks: QueueLocks,
        max_message_size: int,
    ) -> None:
        self._clock = runtime.clock
        self._config: BrokerConfig = runtime.config
        self._metadata = metadata
        self._sender = sender
        self._delayed = delayed
        self._transactions = transactions
        self._group_topics = group_topics
        self._locks = locks
        self._max_body = max_message_size
        self._turn = 0
        self._accept_frames()

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Request.SEND_MESSAGE: self.send,
            Request.SEND_MESSAGE_V2: self.send,
            Request.SEND_BATCH_MESSAGE: self.send,
        }

    def send(self, command: Command, peer: Connection) -> Any:
        """Answer a send with a future. Raises WireError, RemotingError."""
        ready, group, sent = self._records(command, peer)
        ctx = context_of(peer, group, len(command.body))
        return answer_of(self._sender.add(PreparedSend(ready, ctx)), sent.positions, sent.fields)

    def take(self, frame: bytes, peer: Connection) -> TakenSend | None:
        """Take a frame if it is a common send; None: it has to be decoded."""
        target = self._sender.frame_target(frame)
        if target is None:
            return None
        taken = TakenSend(self, frame, peer, *target)
        try:
            self._sender.add(taken)
        except WireError as error:
            taken.set_exception(RemotingError(reply_code(error.code), error.message))
        return taken

    def prepare(self, command: Command, peer: Connection) -> tuple[Prepared, Sent]:
        """Make the records of a taken send after all. Raises RemotingError."""
        ready, _, sent = with_codes(lambda: self._records(command, peer))
        return ready, sent

    def stored(self, fields: dict[str, str]) -> Sent:
        """Return what the fields of an answer say about a stored message."""
        queue_id, offset = int(fields["queueId"]), int(fields["queueOffset"])
        return Sent(Positions(queue_id, self._sender.store_host, [fields["msgId"]], offset), fields)

    def response(self, content: bytes, sent: Sent | None) -> Command:
        """Return the response to a taken send that the sender answered with `content`."""
        if sent is None:  # refused before its records were made
            sent = Sent(Positions(-1, self._sender.store_host), self._fixed_fields())
        return _response(content, sent.positions, sent.fields)

    def _fixed_fields(self) -> dict[str, str]:
        return {"MSG_REGION": self._config.region_id, "TRACE_ON": "true"}

    def _accept_frames(self) -> None:
        """Let the native path append common sends."""
        region, cluster = self._config.region_id, self._config.broker_cluster_name
        values = ("transactionId", "queueId", "msgId", "queueOffset")
        answer = answer_parts({**self._fixed_fields(), **dict.fromkeys(values, "")})
        if answer is None:
            return
        added = (("MSG_REGION", region), ("TRACE_ON", "true"), ("CLUSTER", cluster))
        reserved = (*_DROPPED, DELAY, *REQUESTED, _PREPARED)
        self._sender.accept_frames(ClassicFormat(added, reserved, _KEPT_BITS, answer))

    def _records(self, command: Command, peer: Connection) -> tuple[Prepared, str, Sent]:
        """Return the records of a request, the group of its producer, and where they will be.

        Raises WireError, RemotingError.
        """
        header = sent_header(command)
        batch = header.batch or command.code == Request.SEND_BATCH_MESSAGE
        topic = self._topic(header, batch)
        queue_id = self._queue(header, topic)
        if len(command.body) > self._max_body:
            raise RemotingError(
                Reply.MESSAGE_ILLEGAL, f"the body is over {self._max_body} bytes: maxMessageSize"
            )
        positions = Positions(queue_id, self._sender.store_host)
        ready = Prepared([], [], topic.name, v2.NORMAL, len(command.body))
        message = Message(
            topic.name,
            queue_id,
            command.body,
            b"",
            header.flag,
            header.sys_flag & _KEPT_BITS,
            header.born_timestamp_ms,
            packed_host(peer.peer),
            self._sender.store_host,
            header.reconsume_times,
        )
        unique = handle = ""
        if batch:
            self._add_batch(ready, message)
            unique = property_value(header.properties.encode(), _UNIQUE.encode()).decode()
        else:
            unique, handle = self._add(ready, message, header)
        ready.extras = [ReceiptExtras(on_stored=positions.stored)] * len(ready.ids)
        fields = self._fixed_fields()
        if unique:
            fields["transactionId"] = unique
        if handle:
            fields["recallHandle"] = handle
        return ready, header.producer_group, Sent(positions, fields)

    def _topic(self, header: SendMessage, batch: bool) -> Topic:
        """Return the topic that the message goes to. Raises WireError, RemotingError."""
        name = header.topic
        check_classic_topic(name)
        if is_retry_topic(name):
            if batch:
                raise RemotingError(Reply.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic")
            return self._retry_topic(header)
        if self._metadata.topic(name) is not None:
            return self._sender.records.topic_to_send(name)
        if not self._config.auto_create_topic_enable or header.default_topic != TEMPLATE_TOPIC:
            raise RemotingError(Reply.TOPIC_NOT_EXIST, no_topic(name))
        return self._sender.records.topic_to_send(name, max(1, header.default_topic_queues))

    def _retry_topic(self, header: SendMessage) -> Topic:
        """Return the retry topic of a group, or its dead-letter topic after the last attempt."""
        group = header.topic.removeprefix(_RETRY_PREFIX)
        if self._metadata.group(group) is None:
            group = self._pop_group(header) or group
        check_group(group)
        known = self._metadata.group(group)
        if known is None:
            raise RemotingError(
                Reply.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        limit = header.max_reconsume_times
        if limit is None:
            limit = known.max_attempts - 1
        name = header.topic
        # An orderly consumer sends a message here only when it gives up.
        if header.reconsume_times > limit or self._locks.is_locked(group, self._clock.steady_ns()):
            name = dead_letter_topic(group)
        self._group_topics.ensure(name)
        return self._sender.records.topic_to_send(name)

    def _pop_group(self, header: SendMessage) -> str:
        """Return the group whose retry topic of pops this is, for a message that a mirror brings;
        "" for another topic. The property ORIGIN_GROUP names the group."""
        group = decode_properties(header.properties.encode()).get(ORIGIN_GROUP, "")
        origin = origin_topic(header.topic, group)
        is_retry = origin != header.topic and self._metadata.topic(origin) is not None
        return group if group and is_retry else ""

    def _queue(self, header: SendMessage, topic: Topic) -> int:
        """Return the queue: the client's, or the next one. Raises RemotingError."""
        if header.queue_id >= max(topic.read_queues, topic.write_queues):
            raise RemotingError(
                Reply.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic:[{topic.name}] "
                f"topicConfig.writeQueueNums:[{topic.write_queues}]",
            )
        if header.queue_id < 0 or header.topic != topic.name:
            self._turn += 1
            return self._turn % topic.write_queues
        return header.queue_id

    def _add(self, ready: Prepared, message: Message, header: SendMessage) -> tuple[str, str]:
        """Add the record of a message; return its unique id, and its recall handle if it has one.

        Raises WireError, RemotingError.
        """
        properties = _clients_own(header.properties.encode())
        properties["MSG_REGION"] = self._config.region_id
        properties["TRACE_ON"] = "true"
        properties["CLUSTER"] = self._config.broker_cluster_name
        unique = properties[_UNIQUE]
        if is_retry_topic(message.topic) and not self._pop_group(header):
            # A consumer of the group sends it back; the marks are those of an earlier pop.
            for name in POP_MARKS:
                properties.pop(name, None)
            properties.setdefault("RETRY_TOPIC", message.topic)
        if message.topic != header.topic:  # a dead letter is not delayed
            for name in REQUESTED:
                properties.pop(name, None)
            properties[DELAY] = "-1"
        is_half = properties.get(_PREPARED, "").lower() == "true"
        if is_half:
            # As in RocketMQ: a transactional message is not delayed.
            for name in (DELAY, *REQUESTED):
                properties.pop(name, None)
        message.properties = _encoded(in_bucket_order(properties, SENT_BUCKETS))
        handle = ""
        if is_half:
            message = self._transactions.half(message, properties)
            ready.message_type = v2.TRANSACTION
        elif is_delayed(message.properties):
            message = self._delayed.record(message, properties)
            handle = self._recall_handle(message, ready.topic, unique)
            ready.message_type = v2.DELAY
        _check_size(message.properties)
        ready.messages.append(message)
        ready.ids.append(unique.encode())
        return unique, handle

    def _add_batch(self, ready: Prepared, common: Message) -> None:
        """Add the records of a batch; their properties are stored as sent. Raises RemotingError."""
        for flag, body, properties in _messages(common.body):
            unique = property_value(properties, _UNIQUE.encode())
            text = properties
            if not unique or _MAYBE_DROPPED.search(properties):
                own = _clients_own(properties)
                unique, text = own[_UNIQUE].encode(), _encoded(own)
            if is_delayed(text):
                raise RemotingError(Reply.MESSAGE_ILLEGAL, "a batch cannot be delayed")
            if property_value(text, _PREPARED.encode()):
                raise RemotingError(Reply.MESSAGE_ILLEGAL, "a batch cannot be transactional")
            _check_size(text)
            ready.messages.append(replace(common, body=body, flag=flag, properties=text))
            ready.ids.append(unique)

    def _recall_handle(self, record: Message, topic: str, message_id: str) -> str:
        if record.topic != TIMER_TOPIC:
            return ""
        out_ms = int(decode_properties(record.properties)[OUT_MS])
        mark = record.prepared_transaction_offset
        return RecallHandle(topic, self._config.broker_name, out_ms + 1, message_id, mark).encode()


def answer_of(
    sent: Any, positions: Positions | None, fields: dict[str, str]
) -> asyncio.Future[Command]:
    """Return a future of the response to a send; `sent` is the answer of the sender.

    Without `positions` the response does not name the place of the message.
    """
    future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    sent.add_done_callback(partial(_sent, future, positions, fields))
    return future


def _sent(
    future: asyncio.Future[Command],
    positions: Positions | None,
    fields: dict[str, str],
    sent: Any,
) -> None:
    if future.done():  # the client has left
        return
    try:
        future.set_result(_response(sent.result(), positions, fields))
    except Exception as error:
        future.set_exception(error)


def _response(content: bytes, positions: Positions | None, fields: dict[str, str]) -> Command:
    if content.startswith(ANSWER_OK) and positions is not None and positions.ids:
        # All of it was stored; parsing the answer would cost more than the rest of this function.
        return reply(Reply.SUCCESS, fields=positions.add_to(fields))
    answer = v2.SendMessageResponse.FromString(content)
    status = next(
        (each.status for each in answer.entries if each.status.code != v2.OK), answer.status
    )
    code = Reply.SUCCESS if status.code == v2.OK else reply_code(status.code)
    if positions is None:
        return reply(code, None if code is Reply.SUCCESS else status.message)
    if code not in _STORED or not positions.ids:
        for name in ("transactionId", "recallHandle"):
            fields.pop(name, None)
        return reply(code or Reply.SYSTEM_ERROR, status.message, fields)
    positions.add_to(fields)
    return reply(code, None if code is Reply.SUCCESS else status.message, fields)


def _clients_own(encoded: bytes) -> dict[str, str]:
    """Return the properties of a client, without those of the broker, with a unique id."""
    properties = decode_properties(encoded)
    for name in properties.keys() & _DROPPED:
        del properties[name]
    if _UNIQUE not in properties:
        properties[_UNIQUE] = uuid.uuid4().hex.upper()
    return properties


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except ValueError as error:
        raise RemotingError(Reply.MESSAGE_ILLEGAL, str(error)) from None


def _check_size(properties: bytes) -> None:
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise RemotingError(
            Reply.MESSAGE_ILLEGAL, f"the properties are over {PROPERTIES_BYTES_MAX} bytes"
        )


def _messages(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and properties of the messages of a batch. Raises RemotingError."""
    found = []
    at = 0
    try:
        while at < len(body):
            size, _, _, flag, length = _BATCHED.unpack_from(body, at)
            begin = at + _BATCHED.size
            (rest,) = _PROPERTIES_SIZE.unpack_from(body, begin + length)
            end = begin + length + _PROPERTIES_SIZE.size + rest
            if length < 0 or rest < 0 or end != at + size or end > len(body):
                raise RemotingError(Reply.MESSAGE_ILLEGAL, "the lengths of the batch do not add up")
            found.append((flag, body[begin : begin + length], body[end - rest : end]))
            if len(found) > BATCH_MAX:
                raise RemotingError(
                    Reply.MESSAGE_ILLEGAL, f"the batch has over {BATCH_MAX} messages"
                )
            at = end
    except struct.error:
        raise RemotingError(Reply.MESSAGE_ILLEGAL, "the batch ends within a message") from None
    if not found:
        raise RemotingError(Reply.MESSAGE_ILLEGAL, "the batch has no message")
    return found
