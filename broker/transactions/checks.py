"""Check rounds: producers are asked what became of their transactions, and asked in vain, given up.

Every `transactionCheckInterval` all half messages that are old enough are put behind the others in their
queue, one check more on their account, and one living producer of the topic is asked, in turn, whoever
sent the message (broker semantics, section 5.3; gRPC API, section 8.6). Promises: nobody is asked about
a message younger than its immunity; a question without a producer counts, as in the reference; after
`transactionCheckMax` questions the message lies in TRANS_CHECK_MAX_TIME_TOPIC and is asked about no
more; a round takes a few milliseconds of the loop at a time, and a minute at most.

Unlike the reference, a copy that only waits for its immunity to end is no check: with an immunity of an
hour the fifteen of them would be over after seven minutes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

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
    from ..clients.registry import Client
    from .service import Transactions

log = logging.getLogger(__name__)

# One slice of a round: about 3 ms of the loop, and as many bytes in the log.
_SLICE_MESSAGES = 24
_SLICE_BYTES = 1 << 20
# Half messages that a slice looks at: most of very many may be too young to be asked about.
_SLICE_LOOKS = 5_000
# Clients run the questions one after the other: 2,400 a second is what they may be given.
_BETWEEN_SLICES_S = 0.01
_ROUND_MAX_NS = 60_000_000_000


class CheckRounds:
    """The rounds of one leader."""

    def __init__(self, transactions: Transactions) -> None:
        self._owner = transactions
        self._node = transactions.node
        self._interval_ms = self._node.config.transaction_check_interval
        self._next_ms = 0
        self._round_end_ns = 0
        self._missed = False
        """A round was due while the table was not complete yet after a start."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first round is one interval away."""
        self._next_ms = self._node.clock.wall_ms() + self._interval_ms
        self._arm()

    def stop(self) -> None:
        """No more rounds."""
        self._round_end_ns = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clock_moved(self) -> None:
        """A round that is due begins now; set back, the clock delays none by more than an interval."""
        now_ms = self._node.clock.wall_ms()
        self._next_ms = min(self._next_ms, now_ms + self._interval_ms)
        if self._round_end_ns:
            return  # one is under way; it arms the next
        if now_ms >= self._next_ms:
            self._begin()
        else:
            self._arm()

    def table_complete(self) -> None:
        """After a start: what was due meanwhile is done now."""
        if self._missed:
            self._begin()

    def _arm(self) -> None:
        self.stop()
        # A clock that was set back delays no round by more than an interval.
        delay_ms = min(max(0, self._next_ms - self._node.clock.wall_ms()), self._interval_ms)
        self._timer = self._node.loop.call_later(delay_ms / 1000, self._begin)

    def _begin(self) -> None:
        clock = self._node.clock
        self._next_ms = clock.wall_ms() + self._interval_ms
        self._arm()  # first, so that a round that fails is not the last one
        self._missed = self._owner.recovery is not None
        self._node.pump.catch_up()
        self._owner.reader.read_some()
        if self._missed or not self._owner.table.begin_round():
            return
        self._round_end_ns = clock.steady_ns() + _ROUND_MAX_NS
        self._slice()

    def _slice(self) -> None:
        end_ns = self._round_end_ns
        self._arm()  # first, as above
        steps, more = self._steps()
        taken = self._take(steps)
        if more and taken and self._node.clock.steady_ns() < end_ns:
            self.stop()
            self._round_end_ns = end_ns
            self._timer = self._node.loop.call_later(_BETWEEN_SLICES_S, self._slice)
            return
        self._owner.ops.save_progress()

    def _steps(self) -> tuple[list[tuple[HalfMessage, Step, Record]], bool]:
        """The next few things to do, with the half messages' records; and whether there are more."""
        owner = self._owner
        now_ms = self._node.clock.wall_ms()
        steps: list[tuple[HalfMessage, Step, Record]] = []
        size, stop_at = 0, owner.table.left_in_round - _SLICE_LOOKS
        while len(steps) < _SLICE_MESSAGES and size < _SLICE_BYTES:
            decided = owner.table.decide(now_ms, owner.table.left_in_round - stop_at)
            if decided is None:
                return steps, owner.table.left_in_round > 0
            half, step = decided
            record = owner.record(half)
            if record is None:
                log.warning("transaction.lost message=%s: deleted by retention", half.key)
                owner.give_up(half)
                continue
            steps.append((half, step, record))
            size += record.size
        return steps, True

    def _take(self, steps: list[tuple[HalfMessage, Step, Record]]) -> bool:
        """Write the copies, then ask; False: the log takes nothing now, the next round tries again."""
        try:
            if any(step is Step.GIVE_UP for _, step, _ in steps):
                self._node.system_topics.ensure(PARKED_TOPIC)
            results = self._node.sender.append_internal([self._copy(*step) for step in steps])
        except WireError as error:
            log.info("transaction.checks_wait error=%s", error.message)
            return False
        for (half, step, record), result in zip(steps, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self._taken(half, step, record, result)
        return True

    def _copy(self, half: HalfMessage, step: Step, record: Record) -> Message:
        host = self._node.sender.store_host
        if step is Step.ASK:
            return checked_copy(record, half.checks + 1, host)
        if step is Step.DEFER:
            return immune_copy(record, half.origin, host)
        return parked(record, host)

    def _taken(self, half: HalfMessage, step: Step, record: Record, result: AppendResult) -> None:
        if step is Step.GIVE_UP:
            log.warning(
                "transaction.given_up topic=%s message=%s checks=%d kept_in=%s offset=%d",
                half.topic,
                half.key,
                half.checks,
                PARKED_TOPIC,
                result.queue_offset,
            )
            self._owner.give_up(half)
            return
        self._owner.table.moved(
            half,
            result.queue_offset,
            result.physical_offset,
            result.size,
            asked=step is Step.ASK,
        )
        if step is Step.ASK:
            self._ask(half, record)

    def _ask(self, half: HalfMessage, record: Record) -> None:
        """Ask the next living producer of the topic; when its stream is full, the one after it."""
        node, stats = self._node, self._owner.stats
        ident = str(TransactionId(node.config.broker_name, half.origin, half.key))
        for client in node.clients.producers(half.topic, node.clock.steady_ns()):
            command = recover_command(half, record, ident, client)
            if _send(client, command):
                stats.asked += 1
                return
        stats.unreachable += 1


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
    """The question, with the message as a consumer would get it."""
    topic = topic_field(_named_as_by(client, half.topic))
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


def _named_as_by(client: Client, topic: str) -> v2.Resource:
    """The topic as the client's settings write it, namespace included."""
    if client.settings is not None:
        for resource in client.settings.publishing.topics:
            if resource.name == topic:
                return resource
    return v2.Resource(name=topic)
