"""Takeover: a leader adopts what a follower delivered and acknowledged without a leader.

Acknowledged messages are settled here. Messages in flight stay in flight until the same time, in
the journal and so in the revive topic; their handles stay valid. What this leader has consumed or
delivered in the meantime is newer and stays unchanged, so that a late or repeated handover does no
harm. A FIFO queue is locked as it was on the follower. The payload comes from another replica:
unknown names, and offsets beyond the queue, are ignored. What is not adopted is delivered again,
never lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...journal.revive_codec import BATCH_MAX
from ...names.delivery import Delivery, PopOptions
from ...names.retry import origin_topic, queue_topics
from ..fifo.ordered_group import Batch, OrderedGroup, OrderedQueue
from ..group import PopGroup
from ..handover import acknowledged, set_back
from ..queue import PopQueue

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....proto import v1
    from ....store.message_store import MessageStore
    from ...metadata.tables import Metadata
    from ..journal_api import Journal
    from ..receive import PopService

#: Distances in a checkpoint are 32-bit numbers in Apache's format; this limit is far below.
_SPAN_MAX = 10_000


class Takeover:
    """Merges handovers into the pop state of a leader."""

    def __init__(
        self,
        clock: Clock,
        store: MessageStore,
        metadata: Metadata,
        journal: Journal,
        pop: PopService,
    ) -> None:
        self._clock = clock
        self._store = store
        self._metadata = metadata
        self._journal = journal
        self._pop = pop

    def merge(self, given_out: v1.PopHandover) -> int:
        """Merge a handover; return how many deliveries were adopted."""
        set_back(given_out, self._clock.forward_ms())
        return sum(self._merge_queue(state) for state in given_out.queues)

    def _merge_queue(self, state: v1.PopQueueState) -> int:
        metadata, pop = self._metadata, self._pop
        group = metadata.group(state.group)
        origin = origin_topic(state.topic, state.group)
        topic = metadata.topic(state.topic)
        if group is None or topic is None or metadata.topic(origin) is None:
            return 0
        if not 0 <= state.queue_id < topic.read_queues:
            return 0
        core = pop.core(origin, group)
        kind = queue_topics(origin, state.group).index(state.topic)
        key = kind, state.queue_id
        end = self._store.writer.next_offset(state.topic, state.queue_id)
        if isinstance(core, OrderedGroup):
            if kind:
                return 0
            pop.open_queue(core, key)
            taken = _merge_ordered(core.queues[key], state, end)
        else:
            pop.open_queue(core, key)
            taken = self._merge_pop(core, core.queues[key], state, end)
        pop.changed(core, key)
        pop.rearm(core)
        return taken

    def _merge_pop(self, core: PopGroup, queue: PopQueue, state: v1.PopQueueState, end: int) -> int:
        journal = self._journal
        for offset in queue.advance_to(min(state.consumer_offset, end)):
            journal.settled(core, queue, offset)
        for offset in acknowledged(state):
            if queue.unacked.pop(offset, None) is not None:
                queue.forget(offset)
                journal.settled(core, queue, offset)
            elif queue.next_read <= offset < end and len(queue.skips) < core.in_flight_max:
                queue.skips.add(offset)
        fresh: dict[tuple[int, int, str], list[int]] = {}  # by pop time, visible time and owner
        taken = 0
        for saved in state.deliveries:
            offset = saved.queue_offset
            known = queue.unacked.get(offset)
            if known is not None:
                taken += self._hide_longer(core, queue, known, saved)
            elif queue.next_read <= offset < end and offset not in queue.skips:
                core.restore(queue, _delivery(saved))
                same = saved.pop_time_ms, saved.visible_at_ms, saved.client_id
                fresh.setdefault(same, []).append(offset)
                taken += 1
        for (pop_ms, visible_ms, owner), offsets in fresh.items():
            terms = PopOptions(pop_ms, max(0, visible_ms - pop_ms), owner)
            for part in _parts(sorted(offsets)):
                journal.delivered(core, queue, part, terms)
        queue.settle()
        return taken

    def _hide_longer(
        self, core: PopGroup, queue: PopQueue, known: Delivery, saved: v1.PopDelivery
    ) -> int:
        """Adopt a later delivery of a message that the journal knows by an earlier one."""
        now_ms = self._clock.forward_ms()
        if saved.pop_time_ms <= known.pop_ms or saved.visible_at_ms <= now_ms:
            return 0
        known.attempt = max(known.attempt, saved.attempt)
        known.owner = saved.client_id
        core.hide(queue, known, now_ms, saved.visible_at_ms - now_ms)
        self._journal.changed(core, queue, known, now_ms, known.visible_ms - known.pop_ms, True)
        return 1


def _merge_ordered(queue: OrderedQueue, state: v1.PopQueueState, end: int) -> int:
    queue.advance_to(min(state.consumer_offset, end))
    queue.skips.update(o for o in acknowledged(state) if queue.committed < o < end)
    queue.settle()
    out = [
        delivery for delivery in state.deliveries if queue.committed <= delivery.queue_offset < end
    ]
    if queue.batch is not None or not out:
        return 0
    queue.batch = Batch(
        max(delivery.pop_time_ms for delivery in out),
        max(delivery.visible_at_ms for delivery in out),
        "",
        [delivery.queue_offset for delivery in out],
        out[-1].queue_offset + 1,
        {delivery.queue_offset: max(1, delivery.attempt) for delivery in out},
        out[0].client_id,
        min(delivery.pop_time_ms for delivery in out),
    )
    return len(out)


def _delivery(saved: v1.PopDelivery) -> Delivery:
    return Delivery(
        saved.queue_offset,
        saved.pop_time_ms,
        saved.visible_at_ms,
        max(1, saved.attempt),
        saved.client_id,
        saved.pop_time_ms if saved.client_id else 0,
    )


def _parts(offsets: list[int]) -> list[list[int]]:
    """Split ascending offsets into lists that fit into one checkpoint each."""
    parts: list[list[int]] = []
    for offset in offsets:
        if not parts or len(parts[-1]) >= BATCH_MAX or offset - parts[-1][0] > _SPAN_MAX:
            parts.append([])
        parts[-1].append(offset)
    return parts
