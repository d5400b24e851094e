"""Transactions of the leader: half messages, their outcomes, and the parts that process both.

Promises (docs/formats/broker-semantics.md, sections 5.1 and 5.2; docs/formats/grpc-api.md, sections
5.10 and 6.4): no consumer receives a half message; a commit is in the log before it is answered,
and as durable then as any other message; a repeated outcome is answered OK without effect, a
contradicting one is refused; an id without a half message is INVALID_TRANSACTION_ID. A commit after
the message's immunity time counts; the reference answers it OK and drops it. The table is derived:
`recovery.py` rebuilds it.

    core.py           the table, pure             reader.py   reads both queues into the table
    records.py        the records, pure           checks.py   check rounds
    half_messages.py  records and outcomes        ops.py      writes op records
    recovery.py       the table after a start     stats.py    metrics and their file
    listing.py        the list for tools
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...front.reply_future import ReplyFuture
from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import decode_properties, is_delayed
from ...store.format.results import PutStatus
from ..messages.validation import check_topic, require_client_id
from ..sending.answer import FAILURES, ReceiptExtras, failure_status
from .checks import Asker, CheckRounds
from .core import CheckRules, HalfMessage, Outcome, TransactionTable
from .half_messages import HalfMessages, queue_of
from .ops import OpWriter
from .reader import TransactionReader, read_records
from .records import (
    HALF_TOPIC,
    OP_TOPIC,
    QUEUE,
    TransactionId,
    committed,
    half_message,
    half_properties,
    parse_id,
    producer_group,
)
from .recovery import Recovery
from .stats import CountsFile, TransactionStats

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.format.record import Message, Record
    from ...store.format.results import AppendResult
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..base.slices import Slices
    from ..clients.registry import ClientRegistry
    from ..delay.delayed import DelayedMessages
    from ..messages.validation import Draft
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Metadata, Topic
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump
    from ..visible.durability import DurabilityGate

_PUT_OK = PutStatus.PUT_OK
_OUTCOMES = {v2.COMMIT: Outcome.COMMITTED, v2.ROLLBACK: Outcome.ROLLED_BACK}
# EndTransaction calls that wait for the recovery after a start, which takes seconds at most.
_WAITING_MAX = 10_000
_FILE = "transactionMetrics"
_NO_SUCH = "the topic and the producer group have no such transaction"


class End(Struct, frozen=True):
    """The end of a transaction, as a producer reports it."""

    ident: TransactionId
    #: None: unknown.
    outcome: Outcome | None
    #: If given, they must be those of the half message.
    topic: str = ""
    group: str = ""


class Transactions:
    """Handler of EndTransaction and of TRANSACTION messages.

    For the latter it implements `TypeHandler` (`sending/grpc_records.py`).
    """

    table: TransactionTable
    ops: OpWriter
    halves: HalfMessages
    reader: TransactionReader
    checks: CheckRounds

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        clients: ClientRegistry,
        pump: DispatchPump,
        durability: DurabilityGate,
        appender: InternalAppender,
        system_topics: SystemTopics,
        delayed: DelayedMessages,
    ) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._clock = runtime.clock
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._clients = clients
        self._pump = pump
        self._durability = durability
        self._appender = appender
        self._system_topics = system_topics
        self._delayed = delayed
        self.stats = TransactionStats()
        #: The recovery under way after a start; None once the table is complete.
        self.recovery: Recovery | None = None
        self.file = CountsFile(
            store.config.root / "config" / _FILE,
            self._counts,
            runtime.clock.wall_ms,
            runtime.config.transaction_metric_flush_interval,
        )
        #: Other protocols that reach producers, asked before the clients of this one.
        self.askers: list[Asker] = []
        self._leads = False
        self._waiting = 0
        self._reset()

    # Start and stop.

    def lead(self) -> None:
        """Start to lead: recover the table, then check half messages and accept outcomes."""
        self._leads = True
        self._reset()
        self.recovery = Recovery(
            runtime=self._runtime,
            store=self._store,
            metadata=self._metadata,
            offsets=self._offsets,
            halves=self.halves,
            reader=self.reader,
            on_complete=self._recovered,
        )
        self.reader.start()
        self.recovery.start()
        self.checks.start()

    def follow(self) -> None:
        """Stop to lead: check, end and write nothing."""
        self._leads = False
        self.checks.stop()
        self.reader.stop()
        self.ops.stop()
        if self.recovery is not None:
            self.recovery.cancel()
            self.recovery = None

    def finish(self) -> None:
        """Write the outcomes before a stop, so that a restart does not ask for them again."""
        if self._leads:
            self.ops.flush()
        self.follow()

    async def close(self) -> None:
        """Stop, and write the counts file."""
        self.follow()
        await self.file.close()

    def clock_moved(self) -> None:
        """Do what is due by the changed wall clock."""
        if self._leads:
            self.ops.clock_moved()
            self.checks.clock_moved()

    def _reset(self) -> None:
        """Begin with an empty table, and with the parts that work on it."""
        runtime, store = self._runtime, self._store
        rules = CheckRules(
            self._config.transaction_time_out,
            self._config.transaction_check_max,
            store.config.waiting_kept_ms,
        )
        table = self.table = TransactionTable(rules)
        self.ops = OpWriter(runtime, self._offsets, self._appender, table)
        self.halves = HalfMessages(
            store, table, self.ops, self.file, self.stats, forget=self._appender.forget
        )
        self.reader = TransactionReader(
            loop=runtime.loop, store=store, pump=self._pump, table=table, file=self.file
        )
        self.checks = CheckRounds(
            runtime=runtime,
            metadata=self._metadata,
            pump=self._pump,
            clients=self._clients,
            system_topics=self._system_topics,
            appender=self._appender,
            halves=self.halves,
            reader=self.reader,
            ops=self.ops,
            stats=self.stats,
            askers=self.askers,
        )

    def is_open(self, half: HalfMessage) -> bool:
        """Return whether a half message waits for the topic that has its topic's name now."""
        is_left = self._metadata.is_older(half.topic, half.physical)
        return half.outcome is Outcome.OPEN and not is_left

    def oldest(self) -> int | None:
        """Return the log offset of the oldest record that open transactions need; None without
        one, 0 if this replica does not lead."""
        if not self._leads:
            return 0
        return self._store.reader.position_from(HALF_TOPIC, 0, self.table.bookmarks()[0])

    def _counts(self) -> dict[str, int]:
        return self.table.waiting()

    def _recovered(self) -> None:
        self.recovery = None
        self.checks.table_complete()

    # Sending: called by the sender for every message of the type.

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, ReceiptExtras | None]:
        """Return the half message to store instead of `message`. Raises WireError."""
        if draft.lite_topic or draft.priority is not None:
            raise WireError(
                v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message has neither a lite topic nor a priority",
            )
        half = self.half(message, properties)
        client = self._clients.seen(ctx, self._clock.steady_ns())
        client.client_type = client.client_type or v2.PRODUCER
        self._clients.sends(client, topic.name)
        return half, ReceiptExtras(on_stored=partial(self._transaction_id, draft.message_id))

    def half(self, message: Message, properties: dict[str, str]) -> Message:
        """Return the half message to store instead of `message`. Raises WireError."""
        if self._config.reject_transaction_message:
            raise WireError(v2.FORBIDDEN, "this broker does not accept transactions")
        self._system_topics.ensure(HALF_TOPIC)
        self._system_topics.ensure(OP_TOPIC)
        return half_message(message, properties)

    def _transaction_id(self, key: str, result: AppendResult) -> str:
        return str(TransactionId(self._config.broker_name, result.queue_offset, key))

    # EndTransaction.

    def end_transaction(self, request: v2.EndTransactionRequest, ctx: RequestContext) -> Any:
        """Handle EndTransaction: commit, rollback, or unknown. Raises WireError."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        text = request.transaction_id
        if not text or text.isspace():
            raise WireError(v2.INVALID_TRANSACTION_ID, "the transaction id is blank")
        self.check_leads()
        ident = parse_id(text)
        if ident.broker not in ("", self._config.broker_name):
            raise WireError(
                v2.INVALID_TRANSACTION_ID, f"the transaction belongs to broker {ident.broker}"
            )
        return self.end(End(ident, _OUTCOMES.get(request.resolution), topic=request.topic.name))

    def topic_of(self, offset: int, key: str) -> str:
        """Return the topic of a transaction, which may have ended; empty if there was none. Raises
        WireError."""
        self.check_leads()
        ident = TransactionId(self._config.broker_name, offset, key)
        half = self.table.find(offset, key) if self.recovery is not None else self._find(ident)
        if half is not None:
            return half.topic
        if self.recovery is not None:
            raise WireError(v2.HA_NOT_AVAILABLE, "the broker starts: try again")
        past = self._past(ident)
        return "" if past is None else past[0]

    def end(self, end: End) -> Any:
        """End a transaction of this broker; return an EndTransactionResponse, or a future of one.

        Raises WireError.
        """
        self.check_leads()
        if self.recovery is None:
            return self._end(end, self._find(end.ident))
        # After a start there may be much to read: leave it to the recovery, which reads in slices.
        half = self.table.find(end.ident.offset, end.ident.key)
        if half is None or not half.certain:
            return self._end_later(end)
        return self._end(end, half)

    async def settle(self, slices: Slices) -> None:
        """Take in what has arrived; after a start, what was there: the table is then complete."""
        if self.recovery is not None:
            await self.recovery.finished.wait()
        while self.reader.read_some():
            await slices.pause()

    async def _end_later(self, end: End) -> Any:
        """Wait for the recovery: until then it is unknown whether the half message is open."""
        if self._waiting >= _WAITING_MAX:
            raise WireError(v2.TOO_MANY_REQUESTS, "the broker starts: too many transactions wait")
        self._waiting += 1
        try:
            if self.recovery is not None:
                await self.recovery.finished.wait()
        finally:
            self._waiting -= 1
        self.check_leads()
        answer = self._end(end, self._find(end.ident))
        return await answer if type(answer) is ReplyFuture else answer

    def check_leads(self) -> None:
        """Raise WireError if this replica does not lead."""
        if not self._leads:
            raise WireError(
                v2.HA_NOT_AVAILABLE, "this replica follows: its leader ends transactions"
            )

    def _find(self, ident: TransactionId) -> HalfMessage | None:
        half = self.table.find(ident.offset, ident.key)
        if half is None and (ident.offset < 0 or ident.offset >= self.table.first_half):
            # The sender has its answer, but the record may not be in the table yet.
            store = self._store
            self._pump.run_to_limit()
            while self.reader.read_some():
                pass
            half = self.table.find(ident.offset, ident.key)
            if half is None and self.table.first_half <= ident.offset < store.writer.next_offset(
                HALF_TOPIC, QUEUE
            ):
                # The record is in the log but not readable yet: replicas or the disk lag behind.
                raise WireError(
                    v2.INTERNAL_SERVER_ERROR if store.refusal else v2.HA_NOT_AVAILABLE,
                    store.refusal or "the half message is not durable yet: try again",
                )
        return half

    def _end(self, end: End, half: HalfMessage | None) -> Any:
        outcome = end.outcome
        if half is None:
            return self._repeated(self._past_outcome(end), outcome)
        # Those of other topics and groups do not exist for the caller, who may have no right there.
        if half.topic != (end.topic or half.topic):
            raise _unknown(_NO_SUCH)
        if end.group and not self._is_of_group(half, end.group):
            raise _unknown(_NO_SUCH)
        if half.outcome is not Outcome.OPEN:
            return self._repeated(half.outcome, outcome)
        if outcome is None:
            return v2.EndTransactionResponse(status=_ok())  # unknown: a later check asks again
        self.ops.check_capacity()
        if outcome is Outcome.COMMITTED:
            self._commit(half)
        self.halves.end(half, outcome)
        self.stats.ended(half, outcome, self._clock.wall_ms())
        return self._when_durable()

    def _is_of_group(self, half: HalfMessage, group: str) -> bool:
        record = self.halves.record(half)
        return record is None or producer_group(record.properties) == group

    def _repeated(self, known: Outcome | None, reported: Outcome | None) -> Any:
        """Answer for a transaction that has ended; `known` is None if its outcome was dropped."""
        if known is None or reported is None or known is reported:
            return self._when_durable()
        raise WireError(v2.INVALID_TRANSACTION_ID, f"the transaction is {known.value} already")

    def _past_outcome(self, end: End) -> Outcome | None:
        """Return the outcome of a transaction that has ended. Raises WireError if none existed, or
        if it may have ended with its topic."""
        found = self._past(end.ident)
        if found is None or found[0] != (end.topic or found[0]):
            raise _unknown(_NO_SUCH)
        outcome = self.table.outcome_of(end.ident.offset)
        if outcome is None and self._metadata.is_older(*found):
            raise _unknown("the transaction's topic was deleted")
        return outcome

    def _past(self, ident: TransactionId) -> tuple[str, int] | None:
        """Return the topic of a transaction that has ended, and the log offset of its half message;
        None if there was none."""
        records: list[Record] = []
        if 0 <= ident.offset < self.table.first_half:
            records, _ = read_records(self._store, HALF_TOPIC, QUEUE, ident.offset, 1)
        if records and records[0].queue_offset == ident.offset:
            properties = half_properties(records[0].properties)
            if properties.key == ident.key:
                return properties.topic, records[0].physical_offset
        return None

    def _commit(self, half: HalfMessage) -> None:
        """Append the message to its topic. Raises WireError; then the transaction is still open."""
        topic = self._metadata.topic(half.topic)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {half.topic} does not exist any more")
        if self._metadata.is_older(half.topic, half.physical):
            self.halves.give_up(half)
            raise _unknown("the transaction's topic was deleted")
        record = self.halves.record(half)
        if record is None:
            self.halves.lose(half)
            raise _unknown("retention has deleted the half message")
        message = committed(record, queue_of(half, topic), self._appender.store_host)
        if is_delayed(message.properties):
            message = self._delayed.record(message, decode_properties(message.properties))
        result = self._appender.append(message)
        if result.status is not _PUT_OK:
            raise WireError(*failure_status(self._store, result.status))

    def _when_durable(self) -> Any:
        """Answer OK once the log is as durable as the policy demands."""
        if self._durability.immediate:
            return v2.EndTransactionResponse(status=_ok())
        answer = ReplyFuture()
        self._durability.wait(self._store.log_end, partial(_resolve, answer))
        return answer


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
