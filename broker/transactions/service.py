"""Transactions on the leader: half messages go in, ends come, and the parts that belong to it.

Promises (broker semantics, sections 5.1 and 5.2; gRPC API, sections 5.10 and 6.4): a half message is seen
by no consumer; a commit is in the log before it is answered, and as safe then as any other message; the
same word again is answered OK and does nothing, a contrary one is refused; an id that leads to no half
message is INVALID_TRANSACTION_ID. A commit that comes later than the message's immunity counts: the
reference answers it OK and drops it. The table is derived: `recovery.py` reads it back.

    core.py      the table, pure           ops.py       ends into the log
    records.py   the records, pure         checks.py    questions
    reader.py    queues into the table     stats.py     metrics and their file
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...front.reply_future import ReplyFuture
from ...proto import v2
from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.properties import decode_properties, is_delayed
from ...store.format.record import Record, decode
from ...store.format.results import PutStatus
from ..delay.delayed import delayed_message
from ..messages.validation import check_topic, require_client_id
from ..sending.answer import FAILURES, Special, failure
from .checks import CheckRounds
from .core import CheckRules, HalfMessage, Outcome, TransactionTable
from .ops import OpWriter
from .reader import TransactionReader, read_records
from .records import (
    HALF_TOPIC,
    OP_TOPIC,
    QUEUE,
    TransactionId,
    committed,
    facts_of,
    half_message,
    parse_id,
)
from .recovery import Recovery
from .stats import CountsFile, TransactionStats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from ...front.context import RequestContext
    from ...store.format.record import Message
    from ...store.format.results import AppendResult
    from ..messages.validation import Draft
    from ..metadata.tables import Topic
    from ..node import Node

_PUT_OK = PutStatus.PUT_OK
_OUTCOMES = {v2.COMMIT: Outcome.COMMITTED, v2.ROLLBACK: Outcome.ROLLED_BACK}
# Ends that wait for the table to be complete again after a start, which takes seconds at most.
_WAITING_MAX = 10_000
_FILE = "transactionMetrics"


class Transactions:
    """The owner of TRANSACTION messages (`sending/typed.py: SpecialType`) and of EndTransaction."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.stats = TransactionStats()
        self.table = self._new_table()
        self.ops = OpWriter(self)
        self.reader = TransactionReader(self)
        self.checks = CheckRounds(self)
        self.recovery: Recovery | None = None
        """Under way after a start; None when the table is complete."""
        self.file = CountsFile(
            node.store.config.root / "config" / _FILE,
            self._counts,
            node.clock.wall_ms,
            node.config.transaction_metric_flush_interval,
        )
        self._leads = False
        self._waiting = 0

    # Life.

    def lead(self) -> None:
        """This replica takes writes: read what is open, then check and take ends."""
        self._leads = True
        self.table = self._new_table()
        self.recovery = Recovery(self)
        self.reader.start()
        self.recovery.start()
        self.checks.start()

    def recovered(self) -> None:
        """The table is complete."""
        self.recovery = None

    def follow(self) -> None:
        """This replica follows: nothing is asked, ended or written."""
        self._leads = False
        self.checks.stop()
        self.reader.stop()
        self.ops.stop()
        if self.recovery is not None:
            self.recovery.cancel()
            self.recovery = None

    def finish(self) -> None:
        """The broker stops: write what has ended, so that a restart asks nobody about it."""
        if self._leads:
            self.ops.flush()
        self.follow()

    async def close(self) -> None:
        """Write the file."""
        self.follow()
        await self.file.close()

    def clock_moved(self) -> None:
        """The wall clock jumped: what is due is done now."""
        if self._leads:
            self.ops.clock_moved()
            self.checks.clock_moved()

    def _counts(self) -> dict[str, int]:
        return self.table.waiting()

    def _new_table(self) -> TransactionTable:
        config = self.node.config
        retention_ms = self.node.store.config.file_reserved_time * 3_600_000
        return TransactionTable(
            CheckRules(config.transaction_time_out, config.transaction_check_max, retention_ms)
        )

    # Sending: called by the sender for every message of the type.

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, Special | None]:
        """The half message that is stored in the place of `message`. Raises WireError."""
        node = self.node
        if node.config.reject_transaction_message:
            raise WireError(v2.FORBIDDEN, "this broker takes no transactions")
        if draft.lite_topic or draft.priority is not None:
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message has neither a lite topic nor a priority",
            )
        node.system_topics.ensure(HALF_TOPIC)
        node.system_topics.ensure(OP_TOPIC)
        client = node.clients.seen(ctx, node.clock.steady_ns())
        client.client_type = client.client_type or v2.PRODUCER
        node.clients.sends(client, topic.name)
        return half_message(message, properties), Special(
            stored=partial(self._stored, draft.message_id)
        )

    def _stored(self, key: str, result: AppendResult) -> str:
        return str(TransactionId(self.node.config.broker_name, result.queue_offset, key))

    # EndTransaction.

    def end_transaction(self, request: v2.EndTransactionRequest, ctx: RequestContext) -> Any:
        """Handler: commit, roll back, or not known yet."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        text = request.transaction_id
        if not text or text.isspace():
            raise WireError(v2.INVALID_TRANSACTION_ID, "the transaction id is blank")
        if not self._leads:
            raise WireError(
                v2.HA_NOT_AVAILABLE, "this replica follows: its leader ends transactions"
            )
        ident = parse_id(text)
        if ident.broker not in ("", self.node.config.broker_name):
            raise WireError(
                v2.INVALID_TRANSACTION_ID, f"the transaction belongs to broker {ident.broker}"
            )
        if self.recovery is None:
            return self._end(request, ident, self._find(ident))
        # What there is to read after a start may be much: the recovery does it, a piece at a time.
        half = self.table.find(ident.offset, ident.key)
        if half is None or not half.certain:
            return self._end_later(request, ident)
        return self._end(request, ident, half)

    async def _end_later(self, request: v2.EndTransactionRequest, ident: TransactionId) -> Any:
        """The table is not complete yet after a start: whether the half message is open is not known."""
        if self._waiting >= _WAITING_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, "the broker starts: too many transactions wait")
        self._waiting += 1
        try:
            if self.recovery is not None:
                await self.recovery.finished.wait()
        finally:
            self._waiting -= 1
        if not self._leads:
            raise WireError(
                v2.HA_NOT_AVAILABLE, "this replica follows: its leader ends transactions"
            )
        answer = self._end(request, ident, self._find(ident))
        return await answer if type(answer) is ReplyFuture else answer

    def _find(self, ident: TransactionId) -> HalfMessage | None:
        half = self.table.find(ident.offset, ident.key)
        if half is None and (ident.offset < 0 or ident.offset >= self.table.first_half):
            # Its sender was answered, but its record may not have been looked at yet.
            node = self.node
            before = -1
            while before < node.store.dispatched_offset < node.pump.readable_limit():
                before = node.store.dispatched_offset
                node.pump.run()
            while self.reader.read_some():
                pass
            half = self.table.find(ident.offset, ident.key)
            if half is None and self.table.first_half <= ident.offset < node.store.next_offset(
                HALF_TOPIC, QUEUE
            ):
                # It is in the log, and may not be looked at yet: the replicas or the disk lag behind.
                raise WireError(
                    v2.INTERNAL_SERVER_ERROR if node.store.refusal else v2.HA_NOT_AVAILABLE,
                    node.store.refusal or "the half message is not safe yet: try again",
                )
        return half

    def _end(
        self, request: v2.EndTransactionRequest, ident: TransactionId, half: HalfMessage | None
    ) -> Any:
        topic = request.topic.name
        outcome = _OUTCOMES.get(request.resolution)
        if half is None:
            return self._again(self._how_it_ended(ident, topic), outcome)
        if half.topic != topic:
            raise _unknown(f"the transaction is not one of topic {topic}")
        if half.outcome is not Outcome.OPEN:
            return self._again(half.outcome, outcome)
        if outcome is None:
            return v2.EndTransactionResponse(status=_ok())  # not known yet: it will be asked again
        self.ops.check_room()
        if outcome is Outcome.COMMITTED:
            self._commit(half)
        self.ended(half, outcome)
        self.stats.ended(half, outcome, self.node.clock.wall_ms())
        return self._when_safe()

    def _again(self, known: Outcome | None, told: Outcome | None) -> Any:
        """A word about a transaction that ended before; `known` is None when nobody remembers how."""
        if known is None or told is None or known is told:
            return self._when_safe()
        raise WireError(v2.INVALID_TRANSACTION_ID, f"the transaction is {known.value} already")

    def _how_it_ended(self, ident: TransactionId, topic: str) -> Outcome | None:
        """Of a transaction that is not open. Raises WireError when there never was one."""
        records: list[Record] = []
        if 0 <= ident.offset < self.table.first_half:
            records, _ = read_records(self.node.store, HALF_TOPIC, QUEUE, ident.offset, 1)
        if records and records[0].queue_offset == ident.offset:
            facts = facts_of(records[0].properties)
            if (facts.key, facts.topic) == (ident.key, topic):
                return self.table.outcome_of(ident.offset)
        raise _unknown("there is no such transaction")

    def _commit(self, half: HalfMessage) -> None:
        """Put the message where its consumers look. Raises WireError, and then it is still open."""
        node = self.node
        topic = node.metadata.topic(half.topic)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {half.topic} does not exist any more")
        record = self.record(half)
        if record is None:
            self.give_up(half)
            raise _unknown("the half message is older than what the store keeps")
        message = committed(record, self.queue_of(half, topic), node.sender.store_host)
        if is_delayed(message.properties):
            properties = decode_properties(message.properties)
            message = delayed_message(node, message, properties)
        (result,) = node.sender.append_internal([message])
        if result.status is not _PUT_OK:
            raise WireError(*failure(node.store, result.status))

    def record(self, half: HalfMessage) -> Record | None:
        """The newest copy of a half message; None when retention took it."""
        try:
            return decode(self.node.store.record_at(half.physical))
        except StoreError:
            return None

    def ended(self, half: HalfMessage, outcome: Outcome) -> None:
        """Note an outcome; its op record follows."""
        self.table.end(half, outcome)
        self.file.changed()
        self.ops.ended()

    def give_up(self, half: HalfMessage) -> None:
        """Nobody told the outcome in time."""
        self.stats.given_up += 1
        self.ended(half, Outcome.GIVEN_UP)

    def _when_safe(self) -> Any:
        """OK, once everything in the log is as safe as was asked for."""
        gate = self.node.durability
        if gate.immediate:
            return v2.EndTransactionResponse(status=_ok())
        answer = ReplyFuture()
        gate.wait(self.node.store.log_end, partial(_resolve, answer))
        return answer

    @staticmethod
    def queue_of(half: HalfMessage, topic: Topic) -> int:
        """The queue of a committed message; its topic may have fewer of them by now."""
        queues = max(1, topic.write_queues)
        return half.queue_id if half.queue_id < queues else half.queue_id % queues

    def open_halves(self) -> Iterator[HalfMessage]:
        """Half messages that wait for a word."""
        return (half for half in self.table if half.outcome is Outcome.OPEN)


def _ok() -> v2.Status:
    return v2.Status(code=v2.OK, message="OK")


def _unknown(sentence: str) -> WireError:
    return WireError(v2.INVALID_TRANSACTION_ID, sentence)


def _resolve(answer: ReplyFuture, outcome: PutStatus) -> None:
    if answer.done():
        return
    if outcome is _PUT_OK:
        answer.set_result(v2.EndTransactionResponse(status=_ok()))
    else:
        error = WireError(*FAILURES[outcome])
        answer.set_result(v2.EndTransactionResponse(status=error.status()))


def open_transactions(node: Node, stack: AsyncExitStack) -> None:
    """Make the part and, on a leader, start it; before the door opens."""
    transactions = node.transactions = Transactions(node)
    transactions.file.load()
    node.sender.types[v2.TRANSACTION] = transactions
    node.clock_listeners.add(transactions.clock_moved)
    node.closers.append(transactions.finish)
    stack.push_async_callback(transactions.close)
    if node.leadership.is_leader:
        transactions.lead()
