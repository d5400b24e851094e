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

from ...auth.model import GROUP, TOPIC, Action
from ...remoting.bare_json import QueueKey, dumps
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, without_credentials
from ...remoting.connection import Connection, Handler, PeerGoneError, RemotingError
from ...remoting.headers import ConsumerOfGroup
from ...store.format.message_id import OffsetId
from .queries import clients_record

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..clients.registry import May
    from ..offsets.resets import OffsetResets
    from .base.members import Members

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
        may: May,
    ) -> None:
        self._may = may
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
        needs: list[tuple[str, str, int]] = [(GROUP, header.consumer_group, int(Action.SUB))]
        if command.code == Request.CONSUME_MESSAGE_DIRECTLY:
            fields = {**fields, **_OF_MESSAGE, "brokerName": self._broker_name}
            body, topic = self._record(header.message_id or "")
            needs.append((TOPIC, topic, int(Action.SUB)))
        asked = Command(command.code, fields, body)
        row = self._members.row(header.consumer_group, header.client_id)
        if row is None:
            raise RemotingError(
                Reply.SYSTEM_ERROR,
                f"The Consumer <{header.consumer_group}> <{header.client_id}> not online",
            )
        if not self._may(row.user, tuple(needs), row.channel.peer):
            raise RemotingError(
                Reply.NO_PERMISSION, f"the user of {header.client_id} has no right on what it gets"
            )
        return asyncio.get_running_loop().create_task(call(row.channel, asked))

    def _record(self, message_id: str) -> tuple[bytes, str]:
        """Return the record that an offset id names, and its topic. Raises RemotingError."""
        offset_id = OffsetId.parse(message_id)
        record = (
            clients_record(self._store, offset_id.physical_offset)
            if offset_id is not None
            else None
        )
        if record is None:
            raise RemotingError(
                Reply.SYSTEM_ERROR, f"there is no message with the offset id {message_id[:100]!r}"
            )
        return self._store.record_at(record.physical_offset), record.topic

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> int:
        """Let the consumers of a group go on at other offsets; return how many are connected.

        `offsets` maps queue ids to offsets. Consumers apply them after ten seconds.
        """
        needs = ((GROUP, group, int(Action.SUB)),)
        rows = self._members.rows(group)
        allowed = (row.channel for row in rows if self._may(row.user, needs, row.channel.peer))
        peers = list(dict.fromkeys(allowed))
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
    """Send a request to a client and return its response. Raises RemotingError.

    Neither side gets credentials of the other.
    """
    limit_s = CALL_S if limit_s is None else limit_s
    try:
        answer = await asyncio.wait_for(peer.call(without_credentials(command)), limit_s)
    except TimeoutError:
        raise RemotingError(
            Reply.CONSUME_MSG_TIMEOUT, f"the client did not answer within {limit_s:g} s"
        ) from None
    except PeerGoneError:
        raise RemotingError(Reply.SYSTEM_ERROR, "the client has left") from None
    fields = dict(without_credentials(answer).fields)
    return Command(answer.code, fields, answer.body, remark=answer.remark)
