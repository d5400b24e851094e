"""Pop turn: one ReceiveMessage while it collects its answer.

Promises: the answer is bounded in messages and bytes, except for a first message of any size; a
message is converted before the pop state marks it as delivered; a tag is compared literally,
because the store compares only hashes (docs/formats/grpc-api.md, sections 5.6 and 10.1;
docs/formats/broker-semantics.md, section 1.13).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ...proto.errors import WireError
from ...store.format.record import Delivery as Stored
from ..messages.convert import Receipt, sized_item
from ..messages.runs import Receipts, Room, RunConverter
from ..messages.validation import MAX_BATCH
from ..metadata.incarnations import has_origins, without_left_overs
from ..names.delivery import Key, PopOptions
from ..names.retry import without_foreign
from .dead_letter import Origin, is_dead_letter_topic

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...store.format.results import GetResult, StoredRecord
    from ...store.message_store import MessageStore
    from ..base.counters import Counters
    from ..cold.cold_records import ColdRecords
    from ..messages.filters import Filter
    from ..metadata.tables import Metadata
    from ..trace.spans import DeliveryTraces
    from .dead_letter import DeadLetters
    from .request import PopRequest

logger = logging.getLogger(__name__)

#: Converted or decompressed bytes after which no further message is added to an answer.
ANSWER_BYTES_MAX = 1 << 20
#: Time of the loop for one turn of a long poll: the rest of its search follows after other
#: requests.
_TURN_NS = 10_000_000
#: The same for a request that does not wait: the rest of its search is left out.
_ONLY_TURN_NS = 40_000_000
#: The same once there are messages: a batch is filled although the machine is busy.
_FOUND_TURN_NS = 100_000_000


def matches(record: Stored, wanted: Filter | None) -> bool:
    """Return whether the message passes the consumer's filter."""
    return wanted is None or wanted.matches(record)


class TurnContext(Struct, frozen=True):
    """Where turns read from and what they report to."""

    store: MessageStore
    metadata: Metadata
    cold: ColdRecords
    dead_letters: DeadLetters
    counters: Counters
    broker_name: str
    trace: DeliveryTraces | None
    clock: Clock
    runs: RunConverter


@dataclass(slots=True)
class PopTurn:
    """The answer of one request so far."""

    context: TurnContext
    request: PopRequest
    now_ms: int
    revive_queue: int
    begin_ns: int = field(init=False)
    terms: PopOptions = field(init=False)
    items: list[bytes] = field(default_factory=list)
    #: Delivered offsets and their pop times, by queue.
    given: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    size: int = 0
    retries: int = 0
    #: The limits of the search were reached before the end of the queues.
    more: bool = False
    #: A dead letter was refused: further ones stay in place, hidden for a while.
    dead_letters_wait: bool = False

    def __post_init__(self) -> None:
        request = self.request
        self.begin_ns = self.context.clock.steady_ns()
        self.terms = PopOptions(
            self.now_ms,
            request.invisible_ms,
            request.owner,
            request.attempt_id,
            self.revive_queue,
        )

    def late(self) -> bool:
        """Return whether the turn has used its time; then `more` is set."""
        if self.items:
            allowed_ns = _FOUND_TURN_NS
        else:
            allowed_ns = _TURN_NS if self.request.may_wait else _ONLY_TURN_NS
        if self.context.clock.steady_ns() - self.begin_ns < allowed_ns:
            return False
        self.more = True
        return True

    @property
    def full(self) -> bool:
        """Whether nothing more may be added."""
        return len(self.items) >= self.request.batch or self.size >= ANSWER_BYTES_MAX

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> GetResult:
        """Read records of a queue that may match; a request that may wait gets old ones from a
        follower."""
        tags = self.request.tags
        if tags is not None and tags.codes is None:
            # Only the records decide the match: reading them one at a time would cost a read each.
            count = max(count, MAX_BATCH)
        room = max(1, ANSWER_BYTES_MAX - self.size)
        codes = None if tags is None else tags.codes
        context = self.context
        result = None
        if self.request.may_wait:
            result = context.cold.read(topic, queue_id, offset, count, room, tag_codes=codes)
        if result is None:
            result = context.store.get(topic, queue_id, offset, count, room, tag_codes=codes)
        if has_origins(self.request.topic.name):
            records = without_left_overs(context.metadata, topic, result.records)
            records = without_foreign(topic, self.request.group.name, records)
            return replace(result, records=records)
        return result

    def handle_middle(self, key: Key, pop_ms: int, revive_queue: int) -> str:
        """Return the part that the receipt handles of a batch share, between the offsets."""
        kind, queue_id = key
        broker = self.context.broker_name
        return f" {pop_ms} {self.request.invisible_ms} {revive_queue} {kind} {broker} {queue_id} "

    def add(self, record: Stored, handle: str, attempt: int) -> None:
        """Add a message to the answer."""
        request = self.request
        receipt = Receipt(handle.encode(), request.invisible_ms, attempt)
        item, size = sized_item(request.topic_bytes, record, receipt)
        self.items.append(item)
        self.size += size
        trace = self.context.trace
        if trace is not None:
            trace.received(request.group.name, handle, record, attempt, request.topic.name)

    def add_run(
        self,
        records: list[StoredRecord],
        begin: int,
        room: int,
        receipts: Receipts,
        attempts: Sequence[int] | None = None,
    ) -> tuple[list[int], int]:
        """Add up to `room` messages of a common form, from index `begin` on.

        Return their offsets, and the index of the first record that was neither added nor filtered.
        """
        request = self.request
        if self.context.trace is not None:
            return [], begin  # a trace reads each record
        limits = Room(room, ANSWER_BYTES_MAX - self.size)
        run = self.context.runs.run(
            request.topic_bytes,
            records,
            begin,
            limits,
            wanted=request.tags,
            receipts=receipts,
            attempts=attempts,
        )
        self.items += run.items
        self.size += run.size
        return run.offsets, run.end

    def give(self, key: Key, offsets: Sequence[int], pop_ms: int) -> None:
        """Note deliveries that the pop state has marked, so that they can be taken back."""
        self.given.setdefault(key, []).extend([(offset, pop_ms) for offset in offsets])

    def count_repeated(self, offsets: Sequence[int], handed_out: int) -> None:
        """Count first deliveries of messages that another replica or instance delivered before."""
        if offsets and offsets[0] < handed_out:
            repeated = sum(offset < handed_out for offset in offsets)
            self.context.counters.redelivered_without_handover += repeated

    def count(self) -> None:
        """Add the answer to the totals."""
        if not self.items:
            return
        counters = self.context.counters
        fresh = len(self.items) - self.retries
        topic, group = self.request.topic.name, self.request.group.name
        if self.retries:
            counters.add_received(topic, group, True, self.retries, 0 if fresh else self.size)
        if fresh:
            counters.add_received(topic, group, False, fresh, self.size)

    def dead_letter(self, read_from: str, stored: StoredRecord, attempts: int) -> bool:
        """Move a message without attempts left; return False if that is not possible now.

        A refusal sets `dead_letters_wait`. Messages of dead-letter topics are not moved.
        """
        topic, group = self.request.topic.name, self.request.group.name
        if is_dead_letter_topic(topic) or self.dead_letters_wait:
            return False
        try:
            self.context.dead_letters.append(Origin(topic, read_from, group), stored, attempts)
        except WireError as error:
            self.dead_letters_wait = True
            logger.warning(
                "pop.dead_letter_refused topic=%s group=%s error=%s", topic, group, error
            )
            return False
        logger.info(
            "pop.dead_letter topic=%s group=%s offset=%d attempts=%d",
            topic,
            group,
            stored.queue_offset,
            attempts,
        )
        return True
