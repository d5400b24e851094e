"""One ReceiveMessage while it collects its answer: the terms, what it has got, and the helpers.

Promises: the answer is bounded in messages and bytes, a first message of any size excepted; a message
is converted before the pop state marks it as given out; a tag is compared literally, because the
store compares only hashes (gRPC API, sections 5.6 and 10.1; broker semantics, section 1.13).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..proto.errors import WireError
from ..store.properties import property_value
from ..store.record import Delivery as Stored
from .convert import Receipt, message_item
from .dead_letter import is_dead_letter_topic, move
from .pop import Terms

if TYPE_CHECKING:
    from ..store.results import GetResult, StoredRecord
    from .filters import TagFilter
    from .node import Node
    from .pop_request import PopRequest

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 1 << 20
"""Converted bytes after which no further message is added to an answer."""


def matches(record: Stored, tags: TagFilter | None) -> bool:
    """Whether the message's one tag is among the wanted ones."""
    return tags is None or property_value(record.properties, b"TAGS") in tags.tags


@dataclass(slots=True)
class PopTurn:
    """What one request has got so far."""

    node: Node
    request: PopRequest
    now_ms: int
    terms: Terms = field(init=False)
    items: list[bytes] = field(default_factory=list)
    given: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By queue id: offsets and pop times."""
    size: int = 0
    retries: int = 0
    more: bool = False
    """There is more to look at: the read bounds ended the search, not the queues."""

    def __post_init__(self) -> None:
        request = self.request
        self.terms = Terms(self.now_ms, request.invisible_ms, request.owner, request.attempt_id)

    @property
    def full(self) -> bool:
        """Whether nothing more may be added."""
        return len(self.items) >= self.request.batch or self.size >= ANSWER_BYTES_MAX

    def read(self, queue_id: int, offset: int, count: int) -> GetResult:
        """Records of a queue that may match."""
        tags = self.request.tags
        return self.node.store.get(
            self.request.topic.name,
            queue_id,
            offset,
            count,
            max(1, ANSWER_BYTES_MAX - self.size),
            tag_codes=None if tags is None else tags.codes,
        )

    def handle_middle(self, queue_id: int, pop_ms: int, revive_queue: int) -> str:
        """What the receipt handles of a batch share: everything between its first and its offsets."""
        broker = self.node.config.broker_name
        return f" {pop_ms} {self.request.invisible_ms} {revive_queue} 0 {broker} {queue_id} "

    def add(self, record: Stored, handle: str, attempt: int) -> None:
        """Put a message into the answer."""
        request = self.request
        receipt = Receipt(handle.encode(), request.invisible_ms, attempt)
        item = message_item(request.topic_bytes, record, receipt)
        self.items.append(item)
        self.size += len(item)

    def give(self, queue_id: int, offsets: list[int], pop_ms: int) -> None:
        """Note what the pop state has marked, so that it can be taken back."""
        self.given.setdefault(queue_id, []).extend([(offset, pop_ms) for offset in offsets])

    def count_repeated(self, offsets: list[int], handed_out: int) -> None:
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

    def dead_letter(self, stored: StoredRecord, attempts: int) -> bool:
        """Whether a message whose attempts are used up was moved; if not, it is given out again."""
        topic, group = self.request.topic.name, self.request.group.name
        if is_dead_letter_topic(topic):
            return False
        try:
            move(self.node, topic, group, stored, attempts)
        except WireError as error:
            log.warning("pop.dead_letter_refused topic=%s group=%s error=%s", topic, group, error)
            return False
        log.info(
            "pop.dead_letter topic=%s group=%s offset=%d attempts=%d",
            *(topic, group, stored.queue_offset, attempts),
        )
        return True
