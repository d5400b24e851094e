"""Requests to connected consumers: running information, one message to consume, new offsets.

Source: docs/formats/remoting.md, section 14. A tool's request is forwarded with its fields and its
body, and the consumer's response is returned as it came. A consumer that does not answer within ten
seconds is reported as such; the number of waiting calls is limited by connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...remoting.bare_json import QueueKey, dumps
from ...remoting.codes import Reply, Request
from ...remoting.command import Command
from ...remoting.connection import Connection, Handler, PeerGoneError, RemotingError
from ...remoting.headers import ConsumerOfGroup
from ...store.format.message_id import OffsetId
from .queries import clients_record

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..offsets.resets import OffsetResets
    from .members import Members

#: Time for the answer of a client, as in RocketMQ.
CALL_S = 10.0
#: Fields that a broker adds to the request for one message: there are no flags of units.
_OF_MESSAGE = {"topicSysFlag": "0", "groupSysFlag": "0"}
_FORWARDED = (Request.GET_CONSUMER_RUNNING_INFO, Request.CONSUME_MESSAGE_DIRECTLY)


class ClientCalls:
    """Handlers of requests that are forwarded to consumers."""

    def __init__(
        self,
        store: MessageStore,
        members: Members[Connection],
        resets: OffsetResets,
        broker_name: str,
    ) -> None:
        self._store = store
        self._resets = resets
        self._members = members
        self._broker_name = broker_name

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return dict.fromkeys(_FORWARDED, self.forward)

    def start(self) -> None:
        """Tell consumers of resets from now on."""
        self._resets.listeners.append(self.reset)

    def close(self) -> None:
        """Tell them no more."""
        self._resets.listeners.remove(self.reset)

    def forward(self, command: Command, _: Connection) -> Any:
        """Answer a request for a consumer with a future of its response. Raises RemotingError."""
        header = command.header(ConsumerOfGroup)
        fields, body = command.fields, command.body
        if command.code == Request.CONSUME_MESSAGE_DIRECTLY:
            fields = {**fields, **_OF_MESSAGE, "brokerName": self._broker_name}
            body = self._record(header.message_id or "")
        asked = Command(command.code, fields, body)
        peer = self._members.channel(header.consumer_group, header.client_id)
        if peer is None:
            raise RemotingError(
                Reply.SYSTEM_ERROR,
                f"The Consumer <{header.consumer_group}> <{header.client_id}> not online",
            )
        return asyncio.get_running_loop().create_task(call(peer, asked))

    def _record(self, message_id: str) -> bytes:
        """Return the record that an offset id names. Raises RemotingError."""
        found = OffsetId.parse(message_id)
        if found is None or clients_record(self._store, found.physical_offset) is None:
            raise RemotingError(
                Reply.SYSTEM_ERROR, f"there is no message with the offset id {message_id[:100]!r}"
            )
        return self._store.record_at(found.physical_offset)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> int:
        """Let the consumers of a group go on at other offsets; return how many are connected.

        `offsets` maps queue ids to offsets. Consumers apply them after ten seconds.
        """
        peers = self._members.channels(group)
        table = {QueueKey(self._broker_name, each, topic): offsets[each] for each in offsets}
        fields = {
            **{"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
            **{"queueId": "-1"},
        }
        asked = Command(Request.RESET_CONSUMER_CLIENT_OFFSET, fields, dumps({"offsetTable": table}))
        for peer in peers:
            peer.notify(replace(asked))
        return len(peers)


async def call(peer: Connection, command: Command, limit_s: float | None = None) -> Command:
    """Send a request to a client and return its response. Raises RemotingError."""
    limit_s = CALL_S if limit_s is None else limit_s
    try:
        answer = await asyncio.wait_for(peer.call(command), limit_s)
    except TimeoutError:
        raise RemotingError(
            Reply.CONSUME_MSG_TIMEOUT, f"the client did not answer within {limit_s:g} s"
        ) from None
    except PeerGoneError:
        raise RemotingError(Reply.SYSTEM_ERROR, "the client has left") from None
    return Command(answer.code, dict(answer.fields), answer.body, remark=answer.remark)
