"""Pop mode of classic consumers: receive, acknowledge, change the invisible time, assignment.

Source: docs/formats/remoting.md, section 15. Pops, their state and their receipt handles are those
of the gRPC protocol. The answer to a pop holds the records as they are in the log, with the asked
topic, the attempts so far and the receipt handle as property POP_CK, which the client returns.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ...front.context import RequestContext
from ...front.reply_future import ReplyFuture
from ...proto import v2
from ...proto.errors import WireError
from ...remoting.bare_json import dumps
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import AckMessage, ChangeInvisibleTime, PopMessage
from ...store.format.errors import StoreError
from ...store.format.properties import encode_properties
from ...store.format.record import decode, encode_record
from ..messages.validation import MAX_BATCH, MIN_INVISIBLE_MS
from ..names.handles import ReceiptHandle, decode_handle
from ..names.retry import is_retry_topic, origin_topic
from .admin.tables import in_task
from .assignment import ANY_QUEUE, TooManyTopicsError, pops, share, with_mode
from .base.bodies import asked_assignment, batch_ack, json_object, name_of
from .base.errors import known_group, known_topic, reply_code

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..lite.receive_service import ReceiveService
    from ..maintenance.progress import ConsumerProgress
    from ..metadata.changes import MetadataChanges
    from ..metadata.tables import Metadata
    from ..pop.ack import AckService
    from .base.members import Members

_HANDLE = "POP_CK"
_REPLIES: dict[int, Reply] = {
    v2.MESSAGE_NOT_FOUND: Reply.POLLING_TIMEOUT,
    v2.TOO_MANY_REQUESTS: Reply.POLLING_FULL,
    v2.INVALID_RECEIPT_HANDLE: Reply.NO_MESSAGE,
}


class ClassicPop:
    """Handlers of the pop family."""

    def __init__(
        self,
        *,
        store: MessageStore,
        metadata: Metadata,
        changes: MetadataChanges,
        receiving: ReceiveService,
        acks: AckService,
        members: Members[Connection],
        progress: ConsumerProgress,
        broker_name: str,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._changes = changes
        self._receiving = receiving
        self._acks = acks
        self._members = members
        self._progress = progress
        self._broker_name = broker_name

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Request.POP_MESSAGE: self.pop,
            Request.ACK_MESSAGE: self.ack,
            Request.BATCH_ACK_MESSAGE: self.ack_batch,
            Request.CHANGE_MESSAGE_INVISIBLETIME: self.change,
            Request.QUERY_ASSIGNMENT: self.assignment,
            Request.SET_MESSAGE_REQUEST_MODE: in_task(self.set_mode),
        }

    def pop(self, command: Command, peer: Connection) -> Any:
        """Answer POP_MESSAGE, at once or with a future. Raises WireError, RemotingError."""
        header = command.header(PopMessage)
        if header.max_messages > MAX_BATCH:
            raise RemotingError(
                Reply.INVALID_PARAMETER, f"maxMsgNums is {header.max_messages}, over {MAX_BATCH}"
            )
        if header.queue_id != ANY_QUEUE:
            raise RemotingError(
                Reply.INVALID_PARAMETER, "a pop reads all queues of the topic: queueId is -1"
            )
        sql = header.expression_type == "SQL92"
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=header.consumer_group),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=header.topic)),
            filter_expression=v2.FilterExpression(
                type=v2.SQL if sql else v2.TAG, expression=header.expression
            ),
            batch_size=header.max_messages,
        )
        invisible_ms = max(header.invisible_ms, MIN_INVISIBLE_MS)
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromMilliseconds(max(header.poll_ms, 0))
        ctx = _context(peer, header.consumer_group)
        ctx.short_poll = True
        try:
            found = self._receiving.receive(request, ctx)
        except WireError as error:
            raise _refused(error.code, error.message) from None
        if isinstance(found, list):
            return self._popped(header.topic, found)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        found.add_done_callback(partial(self._received, answer, header.topic, ctx))
        answer.add_done_callback(partial(_left, found))
        return answer

    def _received(
        self,
        answer: asyncio.Future[Command],
        topic: str,
        ctx: RequestContext,
        found: asyncio.Future[list[bytes]],
    ) -> None:
        if answer.done():
            if not found.cancelled() and ctx.on_undelivered is not None:
                ctx.on_undelivered()  # the client has left
            return
        try:
            answer.set_result(self._popped(topic, found.result()))
        except RemotingError as error:
            answer.set_exception(error)

    def _popped(self, topic: str, items: list[bytes]) -> Command:
        """Return the response with the messages of a ReceiveMessage. Raises RemotingError."""
        answers = [v2.ReceiveMessageResponse.FromString(item) for item in items]
        messages = [each.message for each in answers if each.HasField("message")]
        if not messages:
            status = next(each.status for each in answers if each.HasField("status"))
            raise _refused(status.code, status.message)
        queues: dict[str, tuple[int, list[int]]] = {}
        records = []
        handles = []
        for message in messages:
            system = message.system_properties
            handle = decode_handle(system.receipt_handle)
            assert handle is not None, "the broker made it"
            data = self._record(topic, handle, system.receipt_handle, system.delivery_attempt)
            if data is None:
                continue  # deleted by retention since it was read
            records.append(data)
            handles.append(handle)
            queue = queues.setdefault(f"{handle.kind} {handle.queue_id}", (handle.start, []))
            queue[1].append(handle.offset)
        if not handles:
            raise RemotingError(Reply.POLLING_TIMEOUT, "the messages were deleted")
        first = handles[0]
        fields = {
            "popTime": str(first.pop_ms),
            "invisibleTime": str(first.invisible_ms),
            "reviveQid": str(first.revive_queue),
            "restNum": "0",
            "startOffsetInfo": ";".join(f"{key} {start}" for key, (start, _) in queues.items()),
            "msgOffsetInfo": ";".join(
                f"{key} {','.join(map(str, offsets))}" for key, (_, offsets) in queues.items()
            ),
        }
        return reply(Reply.SUCCESS, "FOUND", fields, b"".join(records))

    def _record(self, topic: str, handle: ReceiptHandle, text: str, attempt: int) -> bytes | None:
        try:
            record = decode(self._store.record_at(handle.physical_offset))
        except StoreError:
            return None
        properties = {**record.properties_dict, _HANDLE: text}
        encoded = encode_properties(properties)
        return encode_record(
            replace(record, topic=topic, properties=encoded, reconsume_times=attempt - 1)
        )

    def ack(self, command: Command, peer: Connection) -> Command:
        """Answer ACK_MESSAGE. Raises WireError, RemotingError."""
        header = command.header(AckMessage)
        if refused := self._acknowledge(header.consumer_group, header.topic, [header.handle], peer):
            # Clients do not repeat it: they report that the message comes again.
            raise RemotingError(Reply.NO_MESSAGE, refused[0])
        return reply(Reply.SUCCESS)

    def ack_batch(self, command: Command, peer: Connection) -> Command:
        """Answer BATCH_ACK_MESSAGE. Raises WireError, RemotingError."""
        wanted = command.document(batch_ack)
        if not wanted.handles:
            raise RemotingError(Reply.NO_MESSAGE, "no message to acknowledge")
        refused: list[str] = []
        for (group, topic), handles in wanted.handles.items():
            try:
                refused += self._acknowledge(group, topic, handles, peer)
            except WireError as error:
                refused += [error.message] * len(handles)
        if not refused:
            return reply(Reply.SUCCESS)
        asked = sum(map(len, wanted.handles.values()))
        remark = f"{len(refused)} of {asked} messages are not acknowledged: {refused[0]}"
        # One code stands for all: refused as a whole, the acknowledged ones would be repeated.
        return reply(Reply.SUCCESS if len(refused) < asked else Reply.NO_MESSAGE, remark)

    def _acknowledge(
        self, group: str, topic: str, handles: list[str], peer: Connection
    ) -> list[str]:
        """Acknowledge messages; return why, for each that is not. Raises WireError."""
        name = asked_topic(topic, group)
        request = v2.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=name))
        for handle in handles:
            request.entries.add(receipt_handle=handle)
        data = self._acks.ack(request, _context(peer, group))
        answer = v2.AckMessageResponse.FromString(data)
        return [one.status.message for one in answer.entries if one.status.code != v2.OK]

    def change(self, command: Command, peer: Connection) -> Command:
        """Answer CHANGE_MESSAGE_INVISIBLETIME. Raises WireError, RemotingError."""
        header = command.header(ChangeInvisibleTime)
        name = asked_topic(header.topic, header.consumer_group)
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=header.consumer_group),
            topic=v2.Resource(name=name),
            receipt_handle=header.handle,
            suspend=header.suspend,
        )
        request.invisible_duration.FromMilliseconds(header.invisible_ms)
        try:
            answer = self._acks.change_invisible(request, _context(peer, header.consumer_group))
        except WireError as error:
            raise _refused(error.code, error.message) from None
        handle = decode_handle(answer.receipt_handle)
        if answer.status.code != v2.OK or handle is None:
            raise _refused(answer.status.code, answer.status.message)
        fields = {
            "popTime": str(handle.pop_ms),
            "invisibleTime": str(handle.invisible_ms),
            "reviveQid": str(handle.revive_queue),
        }
        return reply(Reply.SUCCESS, fields=fields)

    def assignment(self, command: Command, _: Connection) -> Command:
        """Answer QUERY_ASSIGNMENT. Raises WireError, RemotingError."""
        asked = command.document(asked_assignment)
        topic = known_topic(self._metadata, asked.topic)
        known = self._metadata.group(known_group(self._metadata, asked.group))
        assert known is not None
        pop = pops(known.attributes, topic.name)
        if pop:
            queues: list[int] = [ANY_QUEUE]
        elif asked.broadcasting:
            queues = list(range(topic.read_queues))
        else:
            members = self._members.client_ids(asked.group)
            queues = list(share(topic.read_queues, members, asked.client_id))
        entries = [
            {
                "messageQueue": {
                    "brokerName": self._broker_name,
                    "queueId": queue_id,
                    "topic": topic.name,
                },
                "mode": "POP" if pop else "PULL",
            }
            for queue_id in queues
        ]
        return reply(Reply.SUCCESS, body=dumps({"messageQueueAssignments": entries}))

    async def set_mode(self, command: Command) -> Command:
        """Answer SET_MESSAGE_REQUEST_MODE. Raises WireError, RemotingError."""
        found = json_object(command.body)
        group, topic = name_of(found, "consumerGroup"), name_of(found, "topic")
        if is_retry_topic(topic):
            raise RemotingError(
                Reply.NO_PERMISSION, "the mode of a retry topic is PULL and cannot be changed"
            )
        mode = found.get("mode")
        if mode not in ("POP", "PULL"):
            raise RemotingError(Reply.INVALID_PARAMETER, "mode is neither POP nor PULL")
        known_topic(self._metadata, topic)
        known = self._metadata.group(known_group(self._metadata, group))
        if mode == "PULL" and known is not None and pops(known.attributes, topic):
            await self._check_retries(group, topic)
            known = self._metadata.group(known_group(self._metadata, group))
        assert known is not None
        try:
            attributes = with_mode(known.attributes, topic, pop=mode == "POP")
        except TooManyTopicsError as error:
            raise RemotingError(Reply.INVALID_PARAMETER, str(error)) from None
        self._changes.check_writable()
        end = self._changes.log.write_group(structs.replace(known, attributes=attributes))
        return await self._changes.when_durable(end, reply(Reply.SUCCESS))

    async def _check_retries(self, group: str, topic: str) -> None:
        """Raise RemotingError if messages wait where only pops read them."""
        rows = await self._progress.group_queues(group, topic)
        waiting = sum(row.lag if row.retry else row.in_flight for row in rows)
        if waiting:
            raise RemotingError(
                Reply.SYSTEM_ERROR,
                f"{waiting} messages of topic {topic} are in flight or wait for a retry, which "
                f"group {group} does not read by pulls: consume them first",
            )


def _context(peer: Connection, group: str) -> RequestContext:
    # The client id of a pop is not known; its polls end with its connection.
    return RequestContext(f"{peer.peer}@{group}", peer=peer.peer, metadata=peer.metadata)


def _refused(code: int, sentence: str) -> RemotingError:
    return RemotingError(_REPLIES.get(code) or reply_code(code) or Reply.SYSTEM_ERROR, sentence)


def asked_topic(topic: str, group: str) -> str:
    """Return the topic that the group pops, for itself or its retry topic."""
    return origin_topic(topic, group) if is_retry_topic(topic) else topic


def _left(found: ReplyFuture | asyncio.Future[Any], answer: asyncio.Future[Command]) -> None:
    if answer.cancelled():
        found.cancel()
