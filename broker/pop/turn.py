"""One ReceiveMessage while it collects its answer: the terms, what it has got, and the helpers.

Promises: the answer is bounded in messages and bytes, a first message of any size excepted; a message
is converted before the pop state marks it as given out; a tag is compared literally, because the
store compares only hashes (gRPC API, sections 5.6 and 10.1; broker semantics, section 1.13).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.record import Delivery as Stored
from ..messages.convert import Receipt, message_item
from ..messages.validation import MAX_BATCH
from .dead_letter import Origin, is_dead_letter_topic, move
from .delivery import Key, PopOptions

if TYPE_CHECKING:
    from ...store.format.results import GetResult, StoredRecord
    from ..messages.filters import Filter
    from ..node import Node
    from .request import PopRequest

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 1 << 20
"""Converted bytes after which no further message is added to an answer."""


def matches(record: Stored, wanted: Filter | None) -> bool:
    """Whether the consumer's filter lets the message through."""
    return wanted is None or wanted.matches(record)


@dataclass(slots=True)
class PopTurn:
    """What one request has got so far."""

    node: Node
    request: PopRequest
    now_ms: int
    revive_queue: int
    terms: PopOptions = field(init=False)
    items: list[bytes] = field(default_factory=list)
    given: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    """By queue: offsets and pop times."""
    size: int = 0
    retries: int = 0
    more: bool = False
    """There is more to look at: the read bounds ended the search, not the queues."""
    dead_letters_wait: bool = False
    """One was refused: what is used up stays where it is, hidden, until the log takes dead letters."""

    def __post_init__(self) -> None:
        request = self.request
        self.terms = PopOptions(
            self.now_ms,
            request.invisible_ms,
            request.owner,
            request.attempt_id,
            self.revive_queue,
        )

    @property
    def full(self) -> bool:
        """Whether nothing more may be added."""
        return len(self.items) >= self.request.batch or self.size >= ANSWER_BYTES_MAX

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> GetResult:
        """Records of a queue that may match; old ones come from a follower, if the request may wait for them."""
        tags = self.request.tags
        if tags is not None and tags.codes is None:
            # Only the records tell which are wanted: a look at one each would take a whole read.
            count = max(count, MAX_BATCH)
        room = max(1, ANSWER_BYTES_MAX - self.size)
        codes = None if tags is None else tags.codes
        if self.request.may_wait:
            cold = self.node.pop.cold
            found = cold.read(topic, queue_id, offset, count, room, tag_codes=codes)
            if found is not None:
                return found
        return self.node.store.get(topic, queue_id, offset, count, room, tag_codes=codes)

    def handle_middle(self, key: Key, pop_ms: int, revive_queue: int) -> str:
        """What the receipt handles of a batch share: everything between its first and its offsets."""
        kind, queue_id = key
        broker = self.node.config.broker_name
        return f" {pop_ms} {self.request.invisible_ms} {revive_queue} {kind} {broker} {queue_id} "

    def add(self, record: Stored, handle: str, attempt: int) -> None:
        """Put a message into the answer."""
        request = self.request
        receipt = Receipt(handle.encode(), request.invisible_ms, attempt)
        item = message_item(request.topic_bytes, record, receipt)
        self.items.append(item)
        self.size += len(item)
        if self.node.trace is not None:
            self.node.trace.received(request.group.name, handle, record, attempt)

    def give(self, key: Key, offsets: Sequence[int], pop_ms: int) -> None:
        """Note what the pop state has marked, so that it can be taken back."""
        self.given.setdefault(key, []).extend([(offset, pop_ms) for offset in offsets])

    def count_repeated(self, offsets: Sequence[int], handed_out: int) -> None:
        """Count first deliveries of what another replica, or an earlier life, gave out before."""
        if offsets and offsets[0] < handed_out:
            repeated = sum(offset < handed_out for offset in offsets)
            self.node.counters.redelivered_without_handover += repeated

    def count(self) -> None:
        """Add the answer to the totals."""
        if not self.items:
            return
        counters = self.node.counters
        fresh = len(self.items) - self.retries
        topic, group = self.request.topic.name, self.request.group.name
        if self.retries:
            counters.add_received(topic, group, True, self.retries, 0 if fresh else self.size)
        if fresh:
            counters.add_received(topic, group, False, fresh, self.size)

    def dead_letter(self, read_from: str, stored: StoredRecord, attempts: int) -> bool:
        """Whether a message whose attempts are used up was moved; if not, see `dead_letters_wait`."""
        topic, group = self.request.topic.name, self.request.group.name
        if is_dead_letter_topic(topic) or self.dead_letters_wait:
            return False
        try:
            move(self.node, Origin(topic, read_from, group), stored, attempts)
        except WireError as error:
            self.dead_letters_wait = True
            log.warning("pop.dead_letter_refused topic=%s group=%s error=%s", topic, group, error)
            return False
        log.info(
            "pop.dead_letter topic=%s group=%s offset=%d attempts=%d",
            *(topic, group, stored.queue_offset, attempts),
        )
        return True
