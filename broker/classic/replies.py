"""Replies to requests of classic producers: passed on to the producer that asked.

Source: docs/formats/remoting.md, sections 11 and 14. A request is an ordinary message whose
properties name the asking client; the consumer sends its reply to the reply topic of the cluster.
The reply is not stored: the broker calls the asking client on its connection, and answers when that
client has taken the reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...nodes.addresses import host_port
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import SendMessage
from ...store.format.properties import decode_properties, encode_properties
from ...store.format.record import unpack_host
from .base.bodies import sent_header
from .calls import call

if TYPE_CHECKING:
    from ..base.runtime import Runtime
    from ..clients.registry import May
    from ..sending.sender import Sender
    from .base.members import Members

_NOT_STORED = {"msgId": "0", "queueOffset": "0"}


class ClassicReplies:
    """Handler of SEND_REPLY_MESSAGE."""

    def __init__(
        self, runtime: Runtime, sender: Sender, producers: Members[Connection], may: May
    ) -> None:
        self._may = may
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._region_id = runtime.config.region_id
        self._topic = f"{runtime.config.broker_cluster_name}_REPLY_TOPIC"
        self._sender = sender
        self._producers = producers

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Request.SEND_REPLY_MESSAGE: self.reply,
            Request.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, command: Command, peer: Connection) -> Any:
        """Answer SEND_REPLY_MESSAGE with a future. Raises RemotingError."""
        header = sent_header(command)
        # Otherwise a right on any topic would be one to reach every client.
        if header.topic != self._topic:
            remark = f"a reply is sent to topic {self._topic}, not {header.topic}"
            raise RemotingError(Reply.INVALID_PARAMETER, remark)
        properties = decode_properties(header.properties.encode())
        client_id = properties.get("REPLY_TO_CLIENT", "")
        asker = self._producers.row_of(client_id)
        # Its receiver needs no right on the reply topic: the client id is its user's.
        if asker is None or not self._may(asker.user, (), asker.channel.peer):
            raise RemotingError(
                Reply.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found."
            )
        pushed = self._pushed(header, properties, command.body, peer)
        return self._loop.create_task(self._push(asker.channel, pushed, header.queue_id))

    def _pushed(
        self, header: SendMessage, properties: dict[str, str], body: bytes, peer: Connection
    ) -> Command:
        """Return the request to the asking client."""
        now_ms = str(self._clock.wall_ms())
        properties["PUSH_REPLY_TIME"] = now_ms
        properties["MSG_REGION"] = self._region_id
        properties["TRACE_ON"] = "true"
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queues),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp_ms),
            "flag": str(header.flag),
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "false",
            "bornHost": peer.peer,
            "storeHost": host_port(*unpack_host(self._sender.store_host)),
            "storeTimestamp": now_ms,
        }
        return Command(Request.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)

    async def _push(self, asker: Connection, pushed: Command, queue_id: int) -> Command:
        taken = await call(asker, pushed)
        fields = {"MSG_REGION": self._region_id, "TRACE_ON": "true"}
        if taken.code != Reply.SUCCESS:
            remark = f"push reply message to {asker.peer} fail, response code: {taken.code}"
            return reply(Reply.SYSTEM_ERROR, remark, fields)
        return reply(Reply.SUCCESS, fields={**fields, **_NOT_STORED, "queueId": str(queue_id)})
