"""Check rounds: ask producers for the outcome of open transactions; give up after too many.

Every `transactionCheckInterval` each half message that is old enough is appended to its queue again
with its check count increased, and one live producer of the topic is asked, in turn; it need not be
the sender (docs/formats/broker-semantics.md, section 5.3; docs/formats/grpc-api.md, section 8.6).
Promises: no message is asked about before its immunity time; a check without a producer counts, as
in the reference; after `transactionCheckMax` checks the message is moved to
TRANS_CHECK_MAX_TIME_TOPIC and not asked about again; a round takes a few milliseconds of the loop
at a time, and a minute at most.

Unlike in the reference, a copy that only waits for its immunity time is no check: with an immunity
of an hour its fifteen checks would be used up after seven minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...auth.model import TOPIC, Action
from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import WireError
from ...store.format.record import Record
from ...store.format.results import PutStatus
from ..messages.convert import delivery_of, message_item, topic_field
from .core import HalfMessage, Step
from .records import PARKED_TOPIC, TransactionId, checked_copy, immune_copy, parked

if TYPE_CHECKING:
    import asyncio

    from ...store.format.record import Message
    from ...store.format.results import AppendResult
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..clients.registry import Client, ClientRegistry
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Metadata
    from ..visible.dispatch_pump import DispatchPump
    from .half_messages import HalfMessages
    from .ops import OpWriter
    from .reader import TransactionReader
    from .stats import TransactionStats

logger = logging.getLogger(__name__)

# One slice of a round: about 3 ms of the loop, and a limit on the bytes appended.
_SLICE_MESSAGES = 24
_SLICE_BYTES = 1 << 20
# Half messages examined by a slice: most of a large number may be too young for a check.
_SLICE_EXAMINED = 5_000
# Clients answer checks one after the other: this bounds the rate at 2,400 a second.
_BETWEEN_SLICES_S = 0.01
_ROUND_MAX_NS = 60_000_000_000


#: Asks a producer for the outcome of a half message, whose newest copy it gets; returns whether
#: there was one to ask.
Asker = Callable[[HalfMessage, "Record"], bool]


class CheckRounds:
    """The check rounds of one leader."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        metadata: Metadata,
        pump: DispatchPump,
        clients: ClientRegistry,
        system_topics: SystemTopics,
        appender: InternalAppender,
        halves: HalfMessages,
        reader: TransactionReader,
        ops: OpWriter,
        stats: TransactionStats,
        askers: Sequence[Asker] = (),
    ) -> None:
        """`askers` reach the producers of other protocols."""
        self._askers = askers
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._broker_name = runtime.config.broker_name
        self._interval_ms = runtime.config.transaction_check_interval
        self._metadata = metadata
        self._pump = pump
        self._clients = clients
        self._system_topics = system_topics
        self._appender = appender
        self._halves = halves
        self._table = halves.table
        self._reader = reader
        self._ops = ops
        self._stats = stats
        self._next_ms = 0
        self._round_end_ns = 0
        #: The recovery has completed the table.
        self._complete = False
        #: A round was due before the table was complete.
        self._missed = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer; the first round is one interval away."""
        self._next_ms = self._clock.wall_ms() + self._interval_ms
        self._arm()

    def stop(self) -> None:
        """Stop the timer and a round under way."""
        self._round_end_ns = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clock_moved(self) -> None:
        """Start a round that is due; a clock set back delays none by more than an interval."""
        now_ms = self._clock.wall_ms()
        self._next_ms = min(self._next_ms, now_ms + self._interval_ms)
        if self._round_end_ns:
            return  # a round is under way; it schedules the next one
        if now_ms >= self._next_ms:
            self._begin()
        else:
            self._arm()

    def table_complete(self) -> None:
        """Allow rounds after the recovery, and start one that was missed."""
        self._complete = True
        if self._missed:
            self._begin()

    def _arm(self) -> None:
        self.stop()
        # A clock that was set back delays no round by more than an interval.
        delay_ms = min(max(0, self._next_ms - self._clock.wall_ms()), self._interval_ms)
        self._timer = self._loop.call_later(delay_ms / 1000, self._begin)

    def _begin(self) -> None:
        clock = self._clock
        self._next_ms = clock.wall_ms() + self._interval_ms
        self._arm()  # first: rounds go on even if this one fails
        self._missed = not self._complete
        self._pump.catch_up()
        self._reader.read_some()
        if self._missed or not self._table.begin_round():
            return
        self._round_end_ns = clock.steady_ns() + _ROUND_MAX_NS
        self._slice()

    def _slice(self) -> None:
        end_ns = self._round_end_ns
        self._arm()  # first, as above
        steps, more = self._steps()
        taken = self._take(steps)
        if more and taken and self._clock.steady_ns() < end_ns:
            self.stop()
            self._round_end_ns = end_ns
            self._timer = self._loop.call_later(_BETWEEN_SLICES_S, self._slice)
            return
        self._ops.save_progress()

    def _steps(self) -> tuple[list[tuple[HalfMessage, Step, Record]], bool]:
        """Return the next steps with the half messages' records, and whether there are more."""
        table, halves = self._table, self._halves
        now_ms = self._clock.wall_ms()
        steps: list[tuple[HalfMessage, Step, Record]] = []
        size, stop_at = 0, table.left_in_round - _SLICE_EXAMINED
        while len(steps) < _SLICE_MESSAGES and size < _SLICE_BYTES:
            decided = table.decide(now_ms, table.left_in_round - stop_at)
            if decided is None:
                return steps, table.left_in_round > 0
            half, step = decided
            record = halves.record(half)
            if record is None:
                logger.warning("transaction.lost message=%s: deleted by retention", half.key)
                halves.lose(half)
                continue
            if self._is_left_over(half):
                logger.warning(
                    "transaction.dropped message=%s topic=%s: the topic was deleted",
                    half.key,
                    half.topic,
                )
                halves.give_up(half)
                continue
            steps.append((half, step, record))
            size += record.size
        return steps, True

    def _is_left_over(self, half: HalfMessage) -> bool:
        metadata = self._metadata
        return metadata.topic(half.topic) is None or metadata.is_older(half.topic, half.physical)

    def _take(self, steps: list[tuple[HalfMessage, Step, Record]]) -> bool:
        """Append the copies, then ask; return False if the log accepts nothing now.

        In that case the next round tries again.
        """
        try:
            if any(step is Step.GIVE_UP for _, step, _ in steps):
                self._system_topics.ensure(PARKED_TOPIC)
            results = self._appender.append_internal([self._copy(*step) for step in steps])
        except WireError as error:
            logger.info("transaction.checks_wait error=%s", error.message)
            return False
        for (half, step, record), result in zip(steps, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self._taken(half, step, record, result)
        return True

    def _copy(self, half: HalfMessage, step: Step, record: Record) -> Message:
        host = self._appender.store_host
        if step is Step.ASK:
            return checked_copy(record, half.checks + 1, host)
        if step is Step.DEFER:
            return immune_copy(record, half.origin, host)
        return parked(record, host)

    def _taken(self, half: HalfMessage, step: Step, record: Record, result: AppendResult) -> None:
        if step is Step.GIVE_UP:
            logger.warning(
                "transaction.given_up topic=%s message=%s checks=%d kept_in=%s offset=%d",
                half.topic,
                half.key,
                half.checks,
                PARKED_TOPIC,
                result.queue_offset,
            )
            self._halves.give_up(half)
            return
        self._table.moved(
            half,
            result.queue_offset,
            result.physical_offset,
            result.size,
            asked=step is Step.ASK,
        )
        if step is Step.ASK:
            self._ask(half, record)

    def _ask(self, half: HalfMessage, record: Record) -> None:
        """Ask one live producer, of whatever protocol."""
        if any(ask(half, record) for ask in self._askers) or self._ask_client(half, record):
            self._stats.asked += 1
        else:
            self._stats.unreachable += 1

    def _ask_client(self, half: HalfMessage, record: Record) -> bool:
        """Ask the next live producer of the topic; skip those whose stream is full."""
        ident = str(TransactionId(self._broker_name, half.origin, half.key))
        needs = ((TOPIC, half.topic, int(Action.PUB)),)
        for client in self._clients.producers(half.topic, self._clock.steady_ns()):
            if not self._clients.may(client.user, needs, client.peer):
                continue  # its user has lost the right since it began to produce
            command = recover_command(half, record, ident, client)
            if _send(client, command):
                return True
        return False


def _send(client: Client, command: v2.TelemetryCommand) -> bool:
    for stream in reversed(client.streams):
        if stream.finished:
            continue
        try:
            stream.send(command)
        except OutboundFull:
            continue
        return True
    return False


def recover_command(
    half: HalfMessage, record: Record, ident: str, client: Client
) -> v2.TelemetryCommand:
    """Return the check command, with the message as a consumer would receive it."""
    topic = topic_field(_topic_resource(client, half.topic))
    item = message_item(topic, delivery_of(record, half.queue_id), None)
    message = v2.ReceiveMessageResponse.FromString(item).message
    if half.immunity_ms is not None:
        system = message.system_properties
        system.orphaned_transaction_recovery_duration.FromMilliseconds(half.immunity_ms)
    return v2.TelemetryCommand(
        status=v2.Status(code=v2.OK, message="OK"),
        recover_orphaned_transaction_command=v2.RecoverOrphanedTransactionCommand(
            message=message, transaction_id=ident
        ),
    )


def _topic_resource(client: Client, topic: str) -> v2.Resource:
    """Return the topic as in the client's settings, including its namespace."""
    return v2.Resource(name=topic, resource_namespace=client.topics.get(topic, ""))
