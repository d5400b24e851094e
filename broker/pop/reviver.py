"""What is due again on a leader: copied to the retry topic, or to the dead letters, in small slices.

Source: broker semantics, sections 1.7, 1.13 and 3.3; design, section 8.4. A message whose invisible time
is over gets its copy in the log first; then the original counts as consumed, as soon as the copy is as
safe as a sender's message would be. A crash between the two leaves it in both places, never in none.
A message of a push consumer that is alive is hidden further instead, three hours at most, and then as
long as the group's retry policy says. While nothing can be written (a follower, a full disk, replicas
missing) messages stay where they are, and pops give them out in place.

Promises: never early; a slice keeps the loop for a few milliseconds, however much is due at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.record import Message, decode_delivery
from ...store.format.results import PutStatus, StoredRecord
from .dead_letter import Origin, dead_letter, is_dead_letter_topic, make_topic
from .delivery import UNDELIVERED_MS, Delivery
from .group import PopGroup
from .queue import PopQueue
from .retry import NORMAL, RETRY_V1, RETRY_V2, retry_copy

if TYPE_CHECKING:
    from ..metadata.tables import Group
    from ..node import Node
    from .subscription import Subscription

log = logging.getLogger(__name__)

SLICE = 32
"""Messages copied at once: about two milliseconds, between which senders may get the loop."""
LOOKED_AT = 512
"""Deliveries looked at in a slice; most of a batch has been acknowledged when its time comes."""
_POLICY_AHEAD = 2
"""The server's first delay is the policy's third: 10 s (broker semantics, section 1.13)."""


@dataclass(slots=True)
class _Copy:
    """One message on its way."""

    queue: PopQueue
    delivery: Delivery
    message: Message


def last_delay_ms(group: Group, times: int) -> int:
    """How long a message is hidden when its renewal ends, after so many retries."""
    delays = group.backoff_ms()
    return delays[min(times + _POLICY_AHEAD, len(delays) - 1)]


class Reviver:
    """Takes what is due out of the pop states of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.revived: Counter[tuple[str, str]] = Counter()
        """Messages copied to a retry topic, by topic and group."""
        self.dead: Counter[tuple[str, str]] = Counter()
        """Messages moved to the dead letters."""

    def alive(self, client_id: str) -> bool:
        """Whether a client was heard of lately."""
        return self._node.clients.alive(client_id, self._node.clock.steady_ns())

    def writes(self) -> bool:
        """Whether copies can be written now."""
        node = self._node
        return (
            node.leadership.pop_leads
            and node.store.writable
            and node.leadership.write_refusal() is None
        )

    def in_place(self, core: PopGroup) -> bool:
        """Whether what is due in a group has to be given out where it is."""
        if not self._node.leadership.pop_leads:
            return True
        if not core.ready:
            return False
        return not self.writes() or self._node.clock.wall_ms() < core.refused_until_ms

    def run(self, sub: Subscription) -> bool:
        """Copy what is due in a group, up to a slice; returns whether more is due now."""
        core = sub.core
        if not isinstance(core, PopGroup):
            return False
        now_ms = self._node.clock.wall_ms()
        more = core.expire(now_ms, self.alive, LOOKED_AT)
        self._tell_renewals(core, now_ms)
        if not core.ready or not self.writes() or now_ms < core.refused_until_ms:
            return more
        copies = self._copies(core, now_ms)
        if copies:
            self._append(sub, core, copies)
        return more or (bool(core.ready) and now_ms >= core.refused_until_ms)

    def _tell_renewals(self, core: PopGroup, now_ms: int) -> None:
        journal = self._node.journal
        for queue, delivery in core.renewed:
            journal.changed(core, queue, delivery, now_ms, delivery.visible_ms - now_ms, True)
        core.renewed.clear()
        for queue, delivery in core.given_up:
            delay_ms = self._policy_ms(core, queue, delivery)
            core.hide(queue, delivery, now_ms, delay_ms)
            journal.changed(core, queue, delivery, now_ms, delay_ms, True)
            log.info(
                "pop.renewal_ended topic=%s group=%s offset=%d delay_ms=%d",
                *(queue.topic, core.group, delivery.offset, delay_ms),
            )
        core.given_up.clear()

    def _policy_ms(self, core: PopGroup, queue: PopQueue, delivery: Delivery) -> int:
        """How long the group's retry policy hides a message that its consumer did not finish."""
        group = self._node.metadata.group(core.group)
        stored = self._read(queue, delivery.offset)
        if group is None or stored is None:
            return UNDELIVERED_MS
        return last_delay_ms(group, decode_delivery(stored.data).reconsume_times)

    def _read(self, queue: PopQueue, offset: int) -> StoredRecord | None:
        records = self._node.store.get(queue.topic, queue.queue_id, offset, 1).records
        return records[0] if records and records[0].queue_offset == offset else None

    def _copies(self, core: PopGroup, now_ms: int) -> list[_Copy]:
        """The next messages and what is to be written; who cannot be read is settled here."""
        copies: list[_Copy] = []
        while len(copies) < SLICE and (taken := core.take_ready()) is not None:
            queue, delivery = taken
            try:
                stored = self._read(queue, delivery.offset)
                if stored is None:
                    self._unreadable(core, queue, delivery, now_ms)
                    continue
                message = self._message(core, queue, delivery, stored)
            except (WireError, StoreError, OSError) as error:
                self._refused(core, [taken], now_ms, str(error))
                break
            copies.append(_Copy(queue, delivery, message))
        return copies

    def _unreadable(self, core: PopGroup, queue: PopQueue, delivery: Delivery, now_ms: int) -> None:
        if delivery.offset >= self._node.store.min_offset(queue.topic, queue.queue_id):
            core.postpone(queue, delivery, now_ms + UNDELIVERED_MS)
            return
        core.drop(queue, delivery.offset)
        self._node.journal.settled(core, queue, delivery.offset)
        self._save(core, queue)

    def _message(
        self, core: PopGroup, queue: PopQueue, delivery: Delivery, stored: StoredRecord
    ) -> Message:
        node = self._node
        record = decode_delivery(stored.data)
        attempts = record.reconsume_times + delivery.attempts
        group = node.metadata.group(core.group)
        if (
            group is not None
            and attempts >= group.max_attempts
            and not is_dead_letter_topic(core.topic)
        ):
            origin = Origin(core.topic, queue.topic, core.group)
            return dead_letter(node, origin, stored, attempts)
        target = self._target(core, queue)
        if node.metadata.topic(target) is None:
            make_topic(node, target)
            node.offsets.commit(target, core.group, 0, 0)
        popped_ms = delivery.since_ms or delivery.pop_ms
        return retry_copy(
            record,
            target,
            core.group,
            delivery.attempts,
            popped_ms,
            store_host=node.sender.store_host,
        )

    def _target(self, core: PopGroup, queue: PopQueue) -> str:
        """What came from a retry topic goes back to the same one."""
        if queue.key[0] != NORMAL:
            return queue.topic
        second = self._node.config.enable_retry_topic_v2
        return core.topics[RETRY_V2 if second else RETRY_V1]

    def _append(self, sub: Subscription, core: PopGroup, copies: list[_Copy]) -> None:
        node = self._node
        now_ms = node.clock.wall_ms()
        try:
            results = node.sender.append_internal([copy.message for copy in copies])
        except WireError as error:
            taken = [(copy.queue, copy.delivery) for copy in copies]
            self._refused(core, taken, now_ms, error.message)
            return
        written: list[_Copy] = []
        end = results[0].end
        for copy, result in zip(copies, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                core.move(copy.queue, copy.delivery.offset)
                written.append(copy)
                end = result.end
            else:
                self._refused(core, [(copy.queue, copy.delivery)], now_ms, result.status.value)
        self._count(core, written)
        node.durability.wait(end, partial(self._safe, sub, core, written))

    def _safe(
        self, sub: Subscription, core: PopGroup, written: list[_Copy], _outcome: PutStatus
    ) -> None:
        """The copies are safe, or it is not known in time: they are in the log either way."""
        touched: dict[int, PopQueue] = {}
        for copy in written:
            core.moved(copy.queue, copy.delivery.offset)
            self._node.journal.settled(core, copy.queue, copy.delivery.offset)
            touched[id(copy.queue)] = copy.queue
        self._node.journal.hurry()
        if sub.core is core:
            for queue in touched.values():
                self._save(core, queue)

    def _count(self, core: PopGroup, written: list[_Copy]) -> None:
        dead = sum(is_dead_letter_topic(copy.message.topic) for copy in written)
        name = core.topic, core.group
        if dead:
            self.dead[name] += dead
            log.info("pop.dead_letter topic=%s group=%s messages=%d", *name, dead)
        if dead < len(written):
            self.revived[name] += len(written) - dead

    def _refused(
        self,
        core: PopGroup,
        taken: list[tuple[PopQueue, Delivery]],
        now_ms: int,
        reason: str,
    ) -> None:
        """They were not written: for a moment pops give out in place what is due."""
        log.warning(
            "pop.retry_refused topic=%s group=%s messages=%d reason=%s",
            *(core.topic, core.group, len(taken), reason),
        )
        core.put_back(taken)
        core.refused_until_ms = now_ms + UNDELIVERED_MS

    def _save(self, core: PopGroup, queue: PopQueue) -> None:
        self._node.offsets.commit(
            queue.topic, core.group, queue.queue_id, queue.committed, queue.next_read
        )
