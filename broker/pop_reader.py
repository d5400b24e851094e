"""From the store to a ReceiveMessage answer: what is due again first, then the queues in turn.

Promises: filtered messages count as consumed; a message with all its attempts used goes to
`%DLQ%<group>` instead of the client; what cannot be read is consumed only if retention has deleted it
(gRPC API, sections 5.6 and 7; broker semantics, sections 1.13 and 3.3). New groups begin at the first
message that there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.record import decode_delivery
from ..store.results import GetStatus
from .handles import FIFO_REVIVE_QUEUE
from .pop import UNDELIVERED_MS, Delivery, PopGroup, PopQueue, next_pop_ms
from .pop_fifo import OrderedGroup, OrderedQueue
from .pop_turn import PopTurn, matches

if TYPE_CHECKING:
    from ..store.results import GetResult, StoredRecord
    from .node import Node
    from .pop_request import PopRequest

_READS_MAX = 16
"""Reads of one queue for one request: a filter that drops everything must not hold the loop."""

Core = PopGroup | OrderedGroup


class PopReader:
    """Serves pops of any group from one node's store."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def pop(self, core: Core, request: PopRequest, first_queue: int) -> PopTurn:
        """Give out what there is, up to the batch size."""
        turn = PopTurn(self._node, request, self._node.clock.wall_ms())
        core.expire(turn.now_ms, self._alive)
        if isinstance(core, PopGroup):
            self._redeliver(core, turn)
        queues = request.topic.read_queues
        for step in range(queues):
            if turn.full:
                break
            queue_id = (first_queue + step) % queues
            if isinstance(core, PopGroup):
                self._pop_queue(core, self.queue(core, queue_id), turn)
            else:
                self._pop_ordered(core, self.ordered(core, queue_id), turn)
        turn.count()
        return turn

    def queue(self, core: PopGroup, queue_id: int) -> PopQueue:
        """The queue's state, begun at the consumer offset when it is new."""
        queue = core.queues.get(queue_id)
        if queue is None:
            queue = core.add_queue(queue_id, *self._begin(core, queue_id))
        return queue

    def ordered(self, core: OrderedGroup, queue_id: int) -> OrderedQueue:
        """The same for a FIFO group."""
        queue = core.queues.get(queue_id)
        if queue is None:
            queue = core.add_queue(queue_id, *self._begin(core, queue_id))
        return queue

    def save(self, core: Core, queue_id: int) -> None:
        """Hand the consumer offset of a queue to the table that is persisted and replicated."""
        queue = core.queues[queue_id]
        self._node.offsets.commit(
            core.topic, core.group, queue_id, queue.committed, queue.next_read
        )

    def _begin(self, core: Core, queue_id: int) -> tuple[int, int]:
        """Consumer offset, and the known end of what was handed out."""
        store = self._node.store
        first = store.min_offset(core.topic, queue_id)
        position = self._node.offsets.position(core.topic, core.group, queue_id)
        if position is None:
            return first, 0
        offset = max(first, position.offset)
        if self._node.is_leader:
            # A crash may have cut the log below the offset; new messages will have these offsets.
            # A follower's log may still be on its way.
            offset = min(offset, max(first, store.next_offset(core.topic, queue_id)))
        return offset, position.handed_out

    def _alive(self, client_id: str) -> bool:
        return self._node.clients.alive(client_id, self._node.clock.steady_ns())

    # Groups without order.

    def _redeliver(self, core: PopGroup, turn: PopTurn) -> None:
        while not turn.full:
            taken = core.take_ready()
            if taken is None:
                return
            queue, delivery = taken
            stored = self._read_one(core, queue, delivery, turn.now_ms)
            if stored is None:
                continue
            record = decode_delivery(stored.data)
            used_up = delivery.attempt >= turn.request.group.max_attempts
            if not matches(record, turn.request.tags) or (
                used_up and turn.dead_letter(stored, delivery.attempt)
            ):
                core.drop(queue, delivery.offset)
                self.save(core, queue.queue_id)
                continue
            pop_ms = next_pop_ms(delivery, turn.now_ms)
            offset = delivery.offset
            middle = turn.handle_middle(queue.queue_id, pop_ms, 0)
            turn.add(
                record, f"{offset}{middle}{offset} {stored.physical_offset}", delivery.attempt + 1
            )
            core.redeliver(queue, delivery, turn.terms)
            turn.give(queue.queue_id, [offset], pop_ms)
            turn.retries += 1

    def _read_one(
        self, core: PopGroup, queue: PopQueue, delivery: Delivery, now_ms: int
    ) -> StoredRecord | None:
        result = self._node.store.get(core.topic, queue.queue_id, delivery.offset, 1)
        if result.records and result.records[0].queue_offset == delivery.offset:
            return result.records[0]
        if delivery.offset < result.min_offset:
            core.drop(queue, delivery.offset)
            self.save(core, queue.queue_id)
        else:
            core.postpone(queue, delivery, now_ms + UNDELIVERED_MS)
        return None

    def _pop_queue(self, core: PopGroup, queue: PopQueue, turn: PopTurn) -> None:
        store = self._node.store
        reads = 0
        while queue.next_read < store.max_offset(core.topic, queue.queue_id):
            count = min(turn.request.batch - len(turn.items), core.room(queue))
            if count <= 0 or turn.full:
                break
            if reads == _READS_MAX:
                turn.more = True
                break
            reads += 1
            before = queue.next_read
            result = turn.read(queue.queue_id, before, count)
            offsets, following = _convert(core, queue, result, turn)
            core.deliver(queue, offsets, following, turn.terms)
            turn.give(queue.queue_id, offsets, turn.now_ms)
            turn.count_repeated(offsets, queue.handed_out)
            if following <= before:
                break
        if reads:
            self.save(core, queue.queue_id)

    # FIFO groups.

    def _pop_ordered(self, core: OrderedGroup, queue: OrderedQueue, turn: PopTurn) -> None:
        if not core.open_for(queue, turn.now_ms, turn.request.attempt_id):
            return
        store = self._node.store
        reads = 0
        while queue.committed < store.max_offset(core.topic, queue.queue_id):
            if reads == _READS_MAX:
                turn.more = True
                break
            reads += 1
            start = queue.committed
            result = turn.read(queue.queue_id, start, turn.request.batch - len(turn.items))
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
                turn.give(queue.queue_id, offsets, pop_ms)
                break
        if reads:
            self.save(core, queue.queue_id)


def _convert(
    core: PopGroup, queue: PopQueue, result: GetResult, turn: PopTurn
) -> tuple[list[int], int]:
    """Put new messages into the answer: their offsets, and where to read on."""
    offsets: list[int] = []
    if result.status is not GetStatus.FOUND:
        return offsets, result.next_offset
    tags = turn.request.tags
    start = result.records[0].queue_offset
    middle = turn.handle_middle(queue.queue_id, turn.now_ms, 0)
    for stored in result.records:
        offset = stored.queue_offset
        if not core.wanted(queue, offset):
            continue
        record = decode_delivery(stored.data)
        if tags is not None and not matches(record, tags):
            continue
        turn.add(record, f"{start}{middle}{offset} {stored.physical_offset}", 1)
        offsets.append(offset)
        if turn.full:
            # What follows is looked at by the next pop.
            return offsets, offset + 1
    return offsets, result.next_offset


def _convert_ordered(
    core: OrderedGroup, queue: OrderedQueue, result: GetResult, turn: PopTurn
) -> tuple[list[int], int]:
    """The same for the batch of a FIFO queue."""
    offsets: list[int] = []
    if result.status is not GetStatus.FOUND:
        return offsets, result.next_offset
    request = turn.request
    pop_ms = core.pop_ms(queue, turn.now_ms)
    middle = turn.handle_middle(queue.queue_id, pop_ms, FIFO_REVIVE_QUEUE)
    for stored in result.records:
        offset = stored.queue_offset
        if not core.wanted(queue, offset):
            continue
        record = decode_delivery(stored.data)
        if not matches(record, request.tags):
            continue
        attempt = core.attempt(queue, offset, request.attempt_id)
        if attempt > request.group.max_attempts and turn.dead_letter(stored, attempt - 1):
            continue
        start = offsets[0] if offsets else offset
        turn.add(record, f"{start}{middle}{offset} {stored.physical_offset}", attempt)
        offsets.append(offset)
        if turn.full:
            return offsets, offset + 1
    return offsets, result.next_offset
