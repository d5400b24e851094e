"""`cometmq.v1.Admin/ListTransactions`: half messages without an outcome, and their checks.

EndTransaction decides one by the id that is listed here. The list is that of the leader's table.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...store.format.properties import decode_properties
from .core import HalfMessage, Outcome
from .records import TransactionId

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..base.config import BrokerConfig
    from .service import Transactions

#: Transactions of one answer: their records are read, about three milliseconds of the event loop.
_COUNT_MAX: Final = 256
#: Half messages that one call examines: some milliseconds of the event loop.
_EXAMINED_MAX: Final = 20_000


class TransactionList:
    """The handler."""

    def __init__(self, transactions: Transactions, config: BrokerConfig) -> None:
        self._transactions = transactions
        self._config = config

    def list_transactions(
        self, request: v1.ListTransactionsRequest, ctx: RequestContext
    ) -> v1.ListTransactionsResponse:
        """Return open transactions, the oldest first. Raises WireError on a follower."""
        transactions, config = self._transactions, self._config
        transactions.check_leads()
        table = transactions.table
        examined = table.first(_EXAMINED_MAX)
        matching = [
            half
            for half in examined
            if half.outcome is Outcome.OPEN and request.topic in ("", half.topic)
        ]
        most = min(request.count or _COUNT_MAX, _COUNT_MAX)
        oldest = nsmallest(most, matching, key=lambda half: (half.since_ms, half.origin))
        return v1.ListTransactionsResponse(
            code=v2.OK,
            message="OK",
            transactions=[self._row(half) for half in oldest],
            open=sum(table.waiting().values()),
            left_out=len(matching) > len(oldest) or len(table) > len(examined),
            recovering=transactions.recovery is not None,
            check_max=config.transaction_check_max,
            check_interval_ms=config.transaction_check_interval,
        )

    def _row(self, half: HalfMessage) -> v1.OpenTransaction:
        record = self._transactions.halves.record(half)
        properties = {} if record is None else decode_properties(record.properties)
        immune_ms = half.immunity_ms
        wait_ms = self._config.transaction_time_out if immune_ms is None else immune_ms
        return v1.OpenTransaction(
            topic=half.topic,
            message_id=half.key,
            transaction_id=str(TransactionId(self._config.broker_name, half.origin, half.key)),
            since_ms=half.since_ms,
            checks=half.checks,
            next_check_ms=half.since_ms + wait_ms,
            size=half.size,
            tag=properties.get("TAGS", ""),
            keys=properties.get("KEYS", "").split(),
        )
