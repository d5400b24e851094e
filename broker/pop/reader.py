"""Pop reader: reads the queues of a group in their order into a ReceiveMessage answer.

Promises: filtered messages count as consumed; a message without attempts left goes to
`%DLQ%<group>` instead of the client; an unreadable message counts as consumed only if retention has
deleted it (docs/formats/grpc-api.md, sections 5.6 and 7; docs/formats/broker-semantics.md, sections
1.4, 1.13 and 3.3). A new group starts at the first message of the queue. Due messages come from the
retry topic, to which `reviver.py` copies them; while nothing can be written they are delivered in
place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.record import decode_delivery
from ...store.format.results import GetStatus
from ..messages.runs import Receipts
from ..metadata.incarnations import is_left_over
from ..names.delivery import UNDELIVERED_MS, Delivery, Key, next_pop_ms
from ..names.handles import FIFO_REVIVE_QUEUE
from ..names.retry import NORMAL, RETRY_V1, RETRY_V2, is_of_group
from .fifo.order import by_priority, falls_in, in_turn, priority_factor, with_retries
from .fifo.ordered_group import OrderedGroup, OrderedQueue
from .group import PopGroup
from .queue import PopQueue
from .reviver import LOOKED_AT, last_delay_ms
from .turn import ANSWER_BYTES_MAX, PopTurn, TurnContext, matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...front.clock import Clock
    from ...store.format.results import GetResult, StoredRecord
    from ...store.message_store import MessageStore
    from ..base.config import BrokerConfig
    from ..base.leadership import Leadership
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from .journal_api import Journal
    from .request import PopRequest
    from .reviver import Reviver
    from .subscription import Core

#: Reads of one queue for one request. With the time of a turn it bounds a filter that drops
#: everything.
_READS_MAX = 16


class PopReader:
    """Reads batches of any group."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        journal: Journal,
        reviver: Reviver,
        context: TurnContext,
    ) -> None:
        self._config = config
        self._clock = clock
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._leadership = leadership
        self._journal = journal
        self._reviver = reviver
        self._context = context
        self._retry_kinds: tuple[tuple[int, ...], ...] = ((RETRY_V1, RETRY_V2),)
        if config.enable_retry_topic_v2:
            # The first form alternates, so that neither starves.
            self._retry_kinds = (RETRY_V2, RETRY_V1), (RETRY_V1, RETRY_V2)
        self._pops = 0

    def pop(self, core: Core, request: PopRequest, turn_number: int) -> PopTurn:
        """Deliver available messages, up to the batch size."""
        self._pops += 1
        turn = self.turn(request, self._pops % self._config.revive_queue_num)
        if isinstance(core, PopGroup):
            if self._reviver.in_place(core):
                turn.more = core.expire(turn.now_ms, self._reviver.alive, LOOKED_AT)
                core.renewed.clear()
                core.given_up.clear()
                self._redeliver(core, turn)
            keys = self._order(core, request, turn_number)
            for number, key in enumerate(keys):
                if turn.full or (number and turn.late()):
                    break
                self._pop_queue(core, self.queue(core, key), turn)
        else:
            core.expire(turn.now_ms, self._reviver.alive, partial(last_delay_ms, request.group))
            for number, key in enumerate(in_turn(request.topic.read_queues, turn_number)):
                if turn.full or (number and turn.late()):
                    break
                self.pop_ordered(core, self.ordered(core, key), turn)
        turn.count()
        return turn

    def turn(self, request: PopRequest, revive_queue: int) -> PopTurn:
        """Return an empty turn for a request."""
        return PopTurn(self._context, request, self._clock.forward_ms(), revive_queue)

    def queue(self, core: PopGroup, key: Key) -> PopQueue:
        """Return the state of a queue; a new one starts at the consumer offset."""
        queue = core.queues.get(key)
        if queue is None:
            queue = core.add_queue(key, *self._begin(core.topics[key[0]], core.group, key[1]))
        return queue

    def ordered(self, core: OrderedGroup, key: Key) -> OrderedQueue:
        """Return the state of a FIFO group's queue; a new one starts at the consumer offset."""
        queue = core.queues.get(key)
        if queue is None:
            queue = core.add_queue(key, *self._begin(core.topic, core.group, key[1]))
        return queue

    def save(self, core: Core, key: Key) -> None:
        """Commit the consumer offset of a queue."""
        queue = core.queues[key]
        topic = queue.topic if isinstance(queue, PopQueue) else core.topic
        self._offsets.commit(topic, core.group, key[1], queue.committed, queue.next_read)

    def _begin(self, topic: str, group: str, queue_id: int) -> tuple[int, int]:
        """Return the consumer offset, and the known end of what was delivered."""
        store = self._store
        first = store.min_offset(topic, queue_id)
        known = self._metadata.topic(topic)
        if known is not None:
            first = max(first, known.first_offsets.get(queue_id, 0))
        position = self._offsets.position(topic, group, queue_id)
        if position is None:
            return first, 0
        offset = max(first, position.offset)
        if self._leadership.pop_leads:
            # A crash may have cut the log below the offset; new messages will get these offsets.
            # On a follower the log may still be arriving.
            offset = min(offset, max(first, store.writer.next_offset(topic, queue_id)))
        return offset, position.handed_out

    def _order(self, core: PopGroup, request: PopRequest, turn_number: int) -> list[Key]:
        topic, config = request.topic, self._config
        retries = self._retry_queues(core, turn_number)
        if topic.message_type == v2.PRIORITY and falls_in(
            turn_number, priority_factor(request.group.attributes)
        ):
            urgent = by_priority(topic.read_queues, config.priority_order_asc)
            percent = config.pop_from_retry_probability_for_priority
            return with_retries(urgent, retries, turn_number, percent)
        main = in_turn(topic.read_queues, turn_number)
        return with_retries(main, retries, turn_number, config.pop_from_retry_probability)

    def _retry_queues(self, core: PopGroup, turn_number: int) -> list[Key]:
        topics = self._metadata.topics
        keys: list[Key] = []
        for kind in self._retry_kinds[turn_number % len(self._retry_kinds)]:
            topic = topics.get(core.topics[kind])
            if topic is not None and topic.read_queues:
                keys += [
                    (kind, queue_id) for _, queue_id in in_turn(topic.read_queues, turn_number)
                ]
        return keys

    # Groups without order.

    def _redeliver(self, core: PopGroup, turn: PopTurn) -> None:
        while not turn.full:
            taken = core.take_ready()
            if taken is None:
                return
            queue, delivery = taken
            try:
                stored = self._read_one(core, queue, delivery, turn.now_ms)
            except OSError:
                core.put_back([taken])
                raise
            if stored is None:
                continue
            record = decode_delivery(stored.data)
            attempts = record.reconsume_times + delivery.attempts
            used_up = attempts >= turn.request.group.max_attempts
            place = queue.topic, record.properties, stored.physical_offset
            if (
                not matches(record, turn.request.tags)
                or is_left_over(self._metadata, *place)
                or (used_up and turn.dead_letter(queue.topic, stored, attempts))
            ):
                core.drop(queue, delivery.offset)
                self._journal.settled(core, queue, delivery.offset)
                self.save(core, queue.key)
                continue
            if used_up and turn.dead_letters_wait:
                core.postpone(queue, delivery, turn.now_ms + UNDELIVERED_MS)
                continue
            pop_ms = next_pop_ms(delivery, turn.now_ms)
            offset = delivery.offset
            middle = turn.handle_middle(queue.key, pop_ms, turn.terms.revive_queue)
            turn.add(
                record, f"{offset}{middle}{offset} {stored.physical_offset}", delivery.attempts + 1
            )
            core.redeliver(queue, delivery, turn.terms)
            self._journal.delivered(core, queue, [offset], turn.terms)
            turn.give(queue.key, [offset], pop_ms)
            turn.retries += 1

    def _read_one(
        self, core: PopGroup, queue: PopQueue, delivery: Delivery, now_ms: int
    ) -> StoredRecord | None:
        result = self._store.get(queue.topic, queue.queue_id, delivery.offset, 1)
        if result.records and result.records[0].queue_offset == delivery.offset:
            return result.records[0]
        if delivery.offset < max(result.min_offset, result.next_offset):
            # Deleted by retention, or skipped because its record is damaged.
            core.drop(queue, delivery.offset)
            self._journal.settled(core, queue, delivery.offset)
            self.save(core, queue.key)
        else:
            core.postpone(queue, delivery, now_ms + UNDELIVERED_MS)
        return None

    def _pop_queue(self, core: PopGroup, queue: PopQueue, turn: PopTurn) -> None:
        store = self._store
        reads = 0
        while queue.next_read < store.max_offset(queue.topic, queue.queue_id):
            count = min(turn.request.batch - len(turn.items), core.free_slots(queue))
            if count <= 0 or turn.full:
                break
            if reads == _READS_MAX or (reads and turn.late()):
                turn.more = True
                break
            reads += 1
            before = queue.next_read
            result = turn.read(queue.topic, queue.queue_id, before, count)
            converted, following = _convert(core, queue, result, turn, count)
            # One shared object for all holders of the offsets.
            offsets = tuple(converted)
            core.deliver(queue, offsets, following, turn.terms)
            if offsets:
                self._journal.delivered(core, queue, offsets, turn.terms)
                turn.give(queue.key, offsets, turn.now_ms)
                turn.count_repeated(offsets, queue.handed_out)
                if queue.key[0] != NORMAL:
                    turn.retries += len(offsets)
            if following <= before:
                break
        if reads:
            self.save(core, queue.key)

    # FIFO groups.

    def pop_ordered(self, core: OrderedGroup, queue: OrderedQueue, turn: PopTurn) -> None:
        """Deliver the queue's next batch, or the same batch again, unless the queue is locked."""
        if not core.open_for(queue, turn.now_ms, turn.request.attempt_id):
            return
        store = self._store
        reads = 0
        while queue.committed < store.max_offset(core.topic, queue.queue_id):
            if reads == _READS_MAX or (reads and turn.late()):
                turn.more = True
                break
            reads += 1
            start = queue.committed
            count = turn.request.batch - len(turn.items)
            result = turn.read(core.topic, queue.queue_id, start, count)
            pop_ms = core.pop_ms(queue, turn.now_ms)
            offsets, following = _convert_ordered(core, queue, result, turn)
            if following <= start and not offsets:
                break
            attempts = [core.attempt(queue, offset, turn.request.attempt_id) for offset in offsets]
            turn.retries += sum(attempt > 1 for attempt in attempts)
            fresh = [o for o, attempt in zip(offsets, attempts, strict=True) if attempt == 1]
            turn.count_repeated(fresh, queue.handed_out)
            core.deliver(queue, offsets, following, turn.terms)
            if offsets:
                turn.give(queue.key, offsets, pop_ms)
                break
        if reads:
            self.save(core, queue.key)


def _convert(
    core: PopGroup, queue: PopQueue, result: GetResult, turn: PopTurn, count: int
) -> tuple[list[int], int]:
    """Add up to `count` new messages to the answer; return their offsets and the next read
    offset."""
    if result.status is not GetStatus.FOUND:
        return [], result.next_offset
    unacked, skips, moving = queue.unacked, queue.skips, queue.moving
    records = [
        stored
        for stored in result.records
        if (offset := stored.queue_offset) not in unacked
        and offset not in skips
        and offset not in moving
    ]
    if queue.key[0] == RETRY_V1:
        # Such a topic stays at the deletion of one whose groups share it.
        since = turn.request.topic.since
        records = [
            stored
            for stored in records
            if stored.physical_offset >= since
            and is_of_group(decode_delivery(stored.data), core.group, queue.topic)
        ]
    middle = turn.handle_middle(queue.key, turn.now_ms, turn.terms.revive_queue)
    offsets, full = _fill(turn, queue.topic, records, room=count, middle=middle)
    return offsets, offsets[-1] + 1 if full else result.next_offset


def _convert_ordered(
    core: OrderedGroup, queue: OrderedQueue, result: GetResult, turn: PopTurn
) -> tuple[list[int], int]:
    """Add the batch of a FIFO queue to the answer; return its offsets and the next read offset."""
    if result.status is not GetStatus.FOUND:
        return [], result.next_offset
    request = turn.request
    records = [stored for stored in result.records if core.wanted(queue, stored.queue_offset)]
    attempts = [core.attempt(queue, s.queue_offset, request.attempt_id) for s in records]
    middle = turn.handle_middle(queue.key, core.pop_ms(queue, turn.now_ms), FIFO_REVIVE_QUEUE)
    room = request.batch - len(turn.items)
    offsets, full = _fill(
        turn,
        core.topic,
        records,
        room=room,
        middle=middle,
        attempts=attempts,
        was_acked=queue.was_acked,
    )
    return offsets, offsets[-1] + 1 if full else result.next_offset


def _fill(
    turn: PopTurn,
    topic: str,
    records: list[StoredRecord],
    *,
    room: int,
    middle: str,
    attempts: list[int] | None = None,
    was_acked: Callable[[int], bool] | None = None,
) -> tuple[list[int], bool]:
    """Add up to `room` messages to the answer; return their offsets, and whether it is full.

    An acknowledged message without attempts left is consumed, not a dead letter.
    """
    request = turn.request
    offsets: list[int] = []
    at = 0
    while at < len(records):
        start = offsets[0] if offsets else -1
        receipts = Receipts(middle, start, request.invisible_ms, request.group.max_attempts)
        begin = at
        added, at = turn.add_run(records, begin, room - len(offsets), receipts, attempts)
        offsets += added
        if at == begin:
            at += 1
            attempt = 1 if attempts is None else attempts[begin]
            acked = was_acked is not None and was_acked(records[begin].queue_offset)
            if _add_one(turn, topic, records[begin], attempt, receipts, acked=acked):
                offsets.append(records[begin].queue_offset)
        if offsets and (len(offsets) == room or turn.size >= ANSWER_BYTES_MAX):
            return offsets, True
    return offsets, False


def _add_one(
    turn: PopTurn,
    topic: str,
    stored: StoredRecord,
    attempt: int,
    receipts: Receipts,
    *,
    acked: bool,
) -> bool:
    """Add a message to the answer unless it is filtered, moved to the dead-letter topic, or
    `acked` and without attempts left."""
    record = decode_delivery(stored.data)
    if not matches(record, turn.request.tags):
        return False
    given = record.reconsume_times + attempt - 1
    if given >= receipts.attempts_max and (acked or turn.dead_letter(topic, stored, given)):
        return False
    offset = stored.queue_offset
    start = offset if receipts.start < 0 else receipts.start
    turn.add(record, f"{start}{receipts.middle}{offset} {stored.physical_offset}", attempt)
    return True
