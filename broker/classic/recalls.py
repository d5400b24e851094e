"""Recalls of classic producers: a delayed message is cancelled before its time.

Source: docs/formats/remoting.md, section 11. The recall is that of the gRPC protocol; classic
producers send delayed messages to topics of every type, so the type of the topic is not checked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...proto import v2
from ...proto.errors import WireError
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import RecallMessage
from .base.errors import context_of, reply_code

if TYPE_CHECKING:
    from ..delay.recall import Recalls

_WRONG_HANDLE = (v2.BAD_REQUEST, v2.NOT_FOUND)


class ClassicRecalls:
    """Handler of RECALL_MESSAGE."""

    def __init__(self, recalls: Recalls, region_id: str) -> None:
        self._recalls = recalls
        self._region_id = region_id

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {Request.RECALL_MESSAGE: self.recall}

    def recall(self, command: Command, peer: Connection) -> Any:
        """Answer RECALL_MESSAGE with a future. Raises RemotingError."""
        header = command.header(RecallMessage)
        ctx = context_of(peer, header.producer_group)
        try:
            done = self._recalls.cancel(header.topic, header.handle, ctx)
        except WireError as error:
            raise _refused(error) from None
        return asyncio.get_running_loop().create_task(self._answer(done))

    async def _answer(self, done: asyncio.Future[v2.RecallMessageResponse]) -> Command:
        try:
            found = await done
        except WireError as error:
            raise _refused(error) from None
        fields = {"msgId": found.message_id, "MSG_REGION": self._region_id}
        return reply(Reply.SUCCESS, fields=fields)


def _refused(error: WireError) -> RemotingError:
    wrong = error.code in _WRONG_HANDLE
    code = Reply.ILLEGAL_OPERATION if wrong else reply_code(error.code)
    return RemotingError(code, error.message)
