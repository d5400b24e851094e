"""Transactions of classic producers: their outcomes, and checks sent to them.

Source: docs/formats/remoting.md, sections 13 and 14. The half message, its table and the check
rounds are those of the transaction service. A producer names a transaction by the queue offset of
the half message and the unique id; a check names the same offset, so it stays valid when the half
message is copied. Checks go to one producer of the group, another one each time.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...auth.model import TOPIC, Action
from ...front.reply_future import ReplyFuture
from ...proto import v2
from ...proto.errors import WireError
from ...remoting.codec import FrameError
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import EndTransaction
from ...store.format.message_id import OffsetId
from ...store.format.record import encode
from ..transactions.core import Outcome
from ..transactions.records import HALF_TOPIC, TransactionId, checked_copy, producer_group
from ..transactions.service import End
from .base.errors import reply_code

if TYPE_CHECKING:
    from ...store.format.record import Record
    from ..base.runtime import Runtime
    from ..clients.registry import May
    from ..sending.sender import Sender
    from ..transactions.core import HalfMessage
    from ..transactions.service import Transactions
    from .base.members import MemberRow, Members

logger = logging.getLogger(__name__)

_OUTCOMES = {0: None, 8: Outcome.COMMITTED, 12: Outcome.ROLLED_BACK}


class ClassicTransactions:
    """Handler of END_TRANSACTION; sends CHECK_TRANSACTION_STATE."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        sender: Sender,
        transactions: Transactions,
        producers: Members[Connection],
        may: May,
    ) -> None:
        self._may = may
        self._broker_name = runtime.config.broker_name
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._sender = sender
        self._transactions = transactions
        self._producers = producers

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {Request.END_TRANSACTION: self.end}

    def start(self) -> None:
        """Ask classic producers from now on."""
        self._transactions.askers.append(self._ask)

    def close(self) -> None:
        """Ask them no more."""
        self._transactions.askers.remove(self._ask)

    def end(self, command: Command, _: Connection) -> Any:
        """Answer END_TRANSACTION. Raises WireError, RemotingError."""
        header = command.header(EndTransaction)
        if header.outcome not in _OUTCOMES:
            raise RemotingError(
                Reply.INVALID_PARAMETER, f"commitOrRollback is {header.outcome}, not 0, 8 or 12"
            )
        ident = TransactionId(self._broker_name, header.half_offset, header.message_id)
        end = End(ident, _OUTCOMES[header.outcome], group=header.producer_group)
        answer = self._transactions.end(end)
        if isinstance(answer, v2.EndTransactionResponse):
            return _response(answer)
        # Not cancelled with the connection: the producer has reported the outcome.
        return asyncio.shield(self._loop.create_task(_wait(answer)))

    def _ask(self, half: HalfMessage, record: Record) -> bool:
        group = producer_group(record.properties)
        needs = ((TOPIC, half.topic, int(Action.PUB)),)

        def allowed(row: MemberRow[Connection]) -> bool:
            return self._may(row.user, needs, row.channel.peer)

        row = self._producers.next_row(group, allowed) if group else None
        if row is None:
            return False
        host = self._sender.store_host
        copy = checked_copy(record, half.checks, host)
        copy = replace(copy, topic=half.topic, queue_id=half.queue_id)
        fields = {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(half.origin),
            "commitLogOffset": str(half.physical),
            "msgId": half.key,
            "transactionId": half.key,
            "offsetMsgId": str(OffsetId(host, half.physical)),
            "bname": self._broker_name,
        }
        body = encode(copy, half.offset, half.physical, self._clock.wall_ms())
        try:
            row.channel.notify(Command(Request.CHECK_TRANSACTION_STATE, fields, body))
        except FrameError as error:
            logger.warning("classic.check_not_sent group=%s reason=%s", group, error)
            return False
        return True


async def _wait(answer: Any) -> Command:
    assert isinstance(answer, ReplyFuture) or asyncio.iscoroutine(answer)
    try:
        response: v2.EndTransactionResponse = await answer
    except WireError as error:
        raise RemotingError(reply_code(error.code), error.message) from None
    return _response(response)


def _response(answer: v2.EndTransactionResponse) -> Command:
    status = answer.status
    if status.code == v2.OK:
        return reply(Reply.SUCCESS)
    return reply(reply_code(status.code) or Reply.SYSTEM_ERROR, status.message)
