"""Reviver: copies due messages to the retry or dead-letter topic, on a leader, in small slices.

Source: docs/formats/broker-semantics.md, sections 1.7, 1.13 and 3.3. When the invisible time of a
message ends, its copy is appended first; the original counts as consumed when the copy is as
durable as a client's message would be. A crash between the two leaves the message in both places,
never in none. The invisible time of a push consumer's message is renewed instead while the consumer
is alive, for at most three hours, and then once more by the group's retry policy. While nothing can
be written (on a follower, on a full disk, without in-sync replicas) messages stay where they are,
and pops deliver them again in place.

Promises: never early; a slice takes a few milliseconds of the loop, however much is due.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto.errors import WireError
from ...store.format.errors import StoreError
from ...store.format.record import Message, decode_delivery
from ...store.format.results import PutStatus, StoredRecord
from ..metadata.incarnations import has_origins, without_left_overs
from ..names.delivery import UNDELIVERED_MS, Delivery
from ..names.retry import NORMAL, RETRY_V1, RETRY_V2, retry_copy
from .dead_letter import Origin, is_dead_letter_topic
from .group import PopGroup
from .queue import PopQueue

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.internal_appender import InternalAppender
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Group, Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.durability import DurabilityGate
    from .dead_letter import DeadLetters, GroupTopics
    from .journal_api import Journal
    from .subscription import Subscription

logger = logging.getLogger(__name__)

#: Messages copied in one slice: about two milliseconds.
SLICE = 32
#: Deliveries examined in one slice; most of a batch is acknowledged when its time ends.
LOOKED_AT = 512
#: The server's first delay is the policy's third: 10 s (broker-semantics.md, section 1.13).
_POLICY_AHEAD = 2


class _Copy(Struct):
    """One message that is being copied."""

    queue: PopQueue
    delivery: Delivery
    message: Message


def last_delay_ms(group: Group, times: int) -> int:
    """Return how long a message is hidden when its renewals end after `times` retries."""
    delays = group.backoff_ms()
    return delays[min(times + _POLICY_AHEAD, len(delays) - 1)]


class Reviver:
    """Processes the due messages of groups without order."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        leadership: Leadership,
        clients: ClientRegistry,
        durability: DurabilityGate,
        journal: Journal,
        appender: InternalAppender,
        topics: GroupTopics,
        dead_letters: DeadLetters,
    ) -> None:
        self._clock = runtime.clock
        self._retry_kind = RETRY_V2 if runtime.config.enable_retry_topic_v2 else RETRY_V1
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._leadership = leadership
        self._clients = clients
        self._durability = durability
        self._journal = journal
        self._appender = appender
        self._topics = topics
        self._dead_letters = dead_letters
        #: Messages copied to a retry topic, by topic and group.
        self.revived: Counter[tuple[str, str]] = Counter()
        #: Messages copied to a dead-letter topic, by topic and group.
        self.dead: Counter[tuple[str, str]] = Counter()

    def alive(self, client_id: str) -> bool:
        """Return whether the client sent a heartbeat or a request lately."""
        return self._clients.alive(client_id, self._clock.steady_ns())

    def writes(self) -> bool:
        """Return whether copies can be written now."""
        leadership = self._leadership
        return leadership.pop_leads and self._store.writable and leadership.write_refusal() is None

    def in_place(self, core: PopGroup) -> bool:
        """Return whether pops deliver the group's due messages again in place."""
        if not self._leadership.pop_leads:
            return True
        if not core.ready:
            return False
        return not self.writes() or self._clock.forward_ms() < core.refused_until_ms

    def run(self, sub: Subscription) -> bool:
        """Copy one slice of a group's due messages; return whether more is due now."""
        core = sub.core
        if not isinstance(core, PopGroup):
            return False
        now_ms = self._clock.forward_ms()
        more = core.expire(now_ms, self.alive, LOOKED_AT)
        self._record_renewals(core, now_ms)
        if not core.ready or not self.writes() or now_ms < core.refused_until_ms:
            return more
        copies = self._copies(core, now_ms)
        if copies:
            self._append(sub, core, copies)
        return more or (bool(core.ready) and now_ms >= core.refused_until_ms)

    def _record_renewals(self, core: PopGroup, now_ms: int) -> None:
        journal = self._journal
        for queue, delivery in core.renewed:
            journal.changed(core, queue, delivery, now_ms, delivery.visible_ms - now_ms, True)
        core.renewed.clear()
        for queue, delivery in core.given_up:
            delay_ms = self._policy_ms(core, queue, delivery)
            core.hide(queue, delivery, now_ms, delay_ms)
            journal.changed(core, queue, delivery, now_ms, delay_ms, True)
            logger.info(
                "pop.renewal_ended topic=%s group=%s offset=%d delay_ms=%d",
                queue.topic,
                core.group,
                delivery.offset,
                delay_ms,
            )
        core.given_up.clear()

    def _policy_ms(self, core: PopGroup, queue: PopQueue, delivery: Delivery) -> int:
        """Return the delay of the group's retry policy for an unfinished message."""
        group = self._metadata.group(core.group)
        stored = self._read(queue, delivery.offset)
        if group is None or stored is None:
            return UNDELIVERED_MS
        return last_delay_ms(group, decode_delivery(stored.data).reconsume_times)

    def _read(self, queue: PopQueue, offset: int) -> StoredRecord | None:
        records = self._store.get(queue.topic, queue.queue_id, offset, 1).records
        return records[0] if records and records[0].queue_offset == offset else None

    def _copies(self, core: PopGroup, now_ms: int) -> list[_Copy]:
        """Return the next due messages and their copies; settle or postpone unreadable ones."""
        copies: list[_Copy] = []
        while len(copies) < SLICE and (taken := core.take_ready()) is not None:
            queue, delivery = taken
            try:
                stored = self._read(queue, delivery.offset)
                if stored is None:
                    self._unreadable(core, queue, delivery, now_ms)
                    continue
                if has_origins(core.topic) and not without_left_overs(
                    self._metadata, queue.topic, [stored]
                ):
                    self._gone(core, queue, delivery)
                    continue
                message = self._message(core, queue, delivery, stored)
            except (WireError, StoreError, OSError) as error:
                self._refused(core, [taken], now_ms, str(error))
                break
            copies.append(_Copy(queue, delivery, message))
        return copies

    def _unreadable(self, core: PopGroup, queue: PopQueue, delivery: Delivery, now_ms: int) -> None:
        if delivery.offset >= self._store.min_offset(queue.topic, queue.queue_id):
            core.postpone(queue, delivery, now_ms + UNDELIVERED_MS)
        else:
            self._gone(core, queue, delivery)

    def _gone(self, core: PopGroup, queue: PopQueue, delivery: Delivery) -> None:
        core.drop(queue, delivery.offset)
        self._journal.settled(core, queue, delivery.offset)
        self._save(core, queue)

    def _message(
        self, core: PopGroup, queue: PopQueue, delivery: Delivery, stored: StoredRecord
    ) -> Message:
        record = decode_delivery(stored.data)
        attempts = record.reconsume_times + delivery.attempts
        group = self._metadata.group(core.group)
        if (
            group is not None
            and attempts >= group.max_attempts
            and not is_dead_letter_topic(core.topic)
        ):
            origin = Origin(core.topic, queue.topic, core.group)
            return self._dead_letters.copy(origin, stored, attempts)
        # A message of a retry topic goes back to the same one.
        target = queue.topic if queue.key[0] != NORMAL else core.topics[self._retry_kind]
        if self._topics.ensure(target):
            self._offsets.commit(target, core.group, 0, 0)
        popped_ms = delivery.since_ms or delivery.pop_ms
        return retry_copy(
            record,
            target,
            core.group,
            delivery.attempts,
            popped_ms,
            store_host=self._appender.store_host,
        )

    def _append(self, sub: Subscription, core: PopGroup, copies: list[_Copy]) -> None:
        now_ms = self._clock.forward_ms()
        try:
            results = self._appender.append_internal([copy.message for copy in copies])
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
        self._durability.wait(end, partial(self._durable, sub, core, written))

    def _durable(
        self, sub: Subscription, core: PopGroup, written: list[_Copy], _outcome: PutStatus
    ) -> None:
        """Settle the originals; the copies are in the log even if the wait timed out."""
        touched: dict[int, PopQueue] = {}
        for copy in written:
            core.moved(copy.queue, copy.delivery.offset)
            self._journal.settled(core, copy.queue, copy.delivery.offset)
            touched[id(copy.queue)] = copy.queue
        self._journal.flush_soon()
        if sub.core is core:
            for queue in touched.values():
                self._save(core, queue)

    def _count(self, core: PopGroup, written: list[_Copy]) -> None:
        dead = sum(is_dead_letter_topic(copy.message.topic) for copy in written)
        name = core.topic, core.group
        if dead:
            self.dead[name] += dead
            logger.info("pop.dead_letter topic=%s group=%s messages=%d", *name, dead)
        if dead < len(written):
            self.revived[name] += len(written) - dead

    def _refused(
        self,
        core: PopGroup,
        taken: list[tuple[PopQueue, Delivery]],
        now_ms: int,
        reason: str,
    ) -> None:
        """Put messages back; for a second pops deliver due messages of the group in place."""
        logger.warning(
            "pop.retry_refused topic=%s group=%s messages=%d reason=%s",
            core.topic,
            core.group,
            len(taken),
            reason,
        )
        core.put_back(taken)
        core.refused_until_ms = now_ms + UNDELIVERED_MS

    def _save(self, core: PopGroup, queue: PopQueue) -> None:
        self._offsets.commit(
            queue.topic, core.group, queue.queue_id, queue.committed, queue.next_read
        )
