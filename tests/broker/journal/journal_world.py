"""A log, a consumer and a clock for the journal core, in memory: everything that a crash may
truncate.

`SimLog` holds the timer topic and the revive topic as one log of records, with the queues over it.
`World` is a broker of one group around a `PopJournal`: it delivers messages, processes
acknowledgements, writes the journal's records, moves due timers to the revive topic, and saves
offsets. `recovered` is the state after a restart on a prefix of that log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cometmq.broker.journal.checkpoint import Batch, Checkpoint
from cometmq.broker.journal.core import PopJournal
from cometmq.broker.journal.recovery import ReviveReader
from cometmq.broker.journal.revive_codec import CheckpointRecord, ReviveWriter, decode, revive_topic
from cometmq.store.format.properties import decode_properties, tags_code
from cometmq.store.format.record import Message, encode
from cometmq.store.format.results import GetResult, GetStatus, StoredRecord
from cometmq.store.timer.rules import TIMER_QUEUE, TIMER_TOPIC

TOPIC = revive_topic("c")
QUEUES = 2
REVIVE_QUEUES = 3
HOST = bytes(8)
Place = tuple[str, int]


@dataclass(slots=True)
class SimLog:
    """Records in append order."""

    #: With the store time.
    messages: list[tuple[Message, int]] = field(default_factory=list)
    queues: dict[Place, list[StoredRecord]] = field(default_factory=dict)

    def append(self, message: Message, now_ms: int) -> int:
        """Append a record; return its queue offset."""
        queue = self.queues.setdefault((message.topic, message.queue_id), [])
        physical_offset, offset = len(self.messages), len(queue)
        self.messages.append((message, now_ms))
        data = encode(message, offset, physical_offset, now_ms)
        queue.append(
            StoredRecord(
                offset, physical_offset, data, tags_code(message.topic, message.properties, now_ms)
            )
        )
        return offset

    def prefix(self, length: int) -> SimLog:
        """Return the log as a crash leaves it."""
        log = SimLog()
        for message, now_ms in self.messages[:length]:
            log.append(message, now_ms)
        return log

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Read a few records at a time, like the store."""
        queue = self.queues.get((topic, queue_id), [])
        looked = queue[offset : offset + min(max_count, 3)]
        found = [one for one in looked if tag_codes is None or one.tags_code in tag_codes]
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, offset + len(looked), 0, len(queue), found)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return 0: nothing is deleted."""
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue."""
        return len(self.queues.get((topic, queue_id), []))

    @property
    def reader(self) -> SimLog:
        return self

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return the first offset stored at the time or later."""
        queue = self.queues.get((topic, queue_id), [])
        times = [self.messages[one.physical_offset][1] for one in queue]
        return next((n for n, time in enumerate(times) if time >= timestamp_ms), len(queue))

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first offset whose record lies at the position or above."""
        queue = self.queues.get((topic, queue_id), [])
        places = [one.physical_offset for one in queue]
        return next((n for n, place in enumerate(places) if place >= physical_offset), len(queue))


@dataclass(slots=True)
class Out:
    """A delivered message."""

    pop_ms: int
    visible_ms: int
    stored: bool = False
    suspended: bool = False
    #: The length of the log with its newest checkpoint.
    written_at: int = 1 << 60


@dataclass(slots=True)
class Saved:
    """Saved offsets, and the length of the log at that time."""

    length: int = 0
    committed: list[int] = field(default_factory=lambda: [0] * QUEUES)
    marks: dict[Place, int] = field(default_factory=dict)


def new_core() -> PopJournal:
    """A journal with the default times."""
    return PopJournal(stay_ms=1_000, margin_ms=3_000, buffer_max=5)


@dataclass(slots=True)
class World:
    """One group on a topic of two queues."""

    log: SimLog = field(default_factory=SimLog)
    core: PopJournal = field(default_factory=new_core)
    now_ms: int = 1_700_000_000_000
    out: list[dict[int, Out]] = field(default_factory=lambda: [{} for _ in range(QUEUES)])
    #: With the length of the log that records it, if any does.
    done: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(QUEUES)])
    next_read: list[int] = field(default_factory=lambda: [0] * QUEUES)
    committed: list[int] = field(default_factory=lambda: [0] * QUEUES)
    saved: Saved = field(default_factory=Saved)
    writer: ReviveWriter = field(default_factory=lambda: ReviveWriter("b", TOPIC, 1_000))
    reader: ReviveReader = field(init=False)
    #: The last checkpoint of done messages.
    newest: dict[tuple[int, int], Checkpoint] = field(default_factory=dict)
    surfaced: int = 0
    #: Timers: time and record.
    waiting: list[tuple[int, Message]] = field(default_factory=list)
    pops: int = 0

    def __post_init__(self) -> None:
        self.reader = self.read(self.log, self.core, self.saved.marks)

    def read(self, log: SimLog, core: PopJournal, marks: dict[Place, int]) -> ReviveReader:
        """Return a reader that starts at the marks."""
        reader = ReviveReader(
            log,
            core,
            TOPIC,
            lambda topic, queue: marks.get((topic, queue)),
            lambda _group, _offset: False,
        )
        reader.watch(range(REVIVE_QUEUES))
        return reader

    # Consumer events.

    def pop(self, queue: int, gaps: list[int], invisible_ms: int) -> None:
        """Deliver new messages; those in the gaps are filtered out."""
        offset = self.next_read[queue]
        offsets = []
        for gap in gaps:
            for skipped in range(offset, offset + gap):
                self.done[queue][skipped] = 1 << 60
            offset += gap
            offsets.append(offset)
            offset += 1
        self.next_read[queue] = offset
        self.pops += 1
        for each in offsets:
            self.out[queue][each] = Out(self.now_ms, self.now_ms + invisible_ms)
        book = self.core.book("t", "g", queue)
        revive_queue = self.pops % REVIVE_QUEUES
        self.core.delivered(book, offsets, self.now_ms, invisible_ms, revive_queue)
        self.settle(queue)

    def ack(self, queue: int, offset: int) -> None:
        """Acknowledge a message."""
        del self.out[queue][offset]
        self.done[queue][offset] = 1 << 60
        book = self.core.book("t", "g", queue)
        self.newest[queue, offset] = book.open[offset]
        self.core.settled(book, offset)
        self.settle(queue)

    def change(self, queue: int, offset: int, invisible_ms: int, suspended: bool) -> None:
        """Change a message's invisible time."""
        old = self.out[queue][offset]
        pop_ms = max(self.now_ms, old.pop_ms + 1)
        visible_ms = self.now_ms + invisible_ms
        # A negative time would make it visible early: see PopJournal.changed.
        visible_ms = max(visible_ms, pop_ms)
        self.out[queue][offset] = Out(pop_ms, visible_ms, old.stored, suspended)
        book = self.core.book("t", "g", queue)
        self.core.changed(book, offset, pop_ms, visible_ms - pop_ms, suspended)

    def settle(self, queue: int) -> None:
        """Advance the consumer offset over done and journalled messages."""
        offset = self.committed[queue]
        while offset < self.next_read[queue]:
            out = self.out[queue].get(offset)
            if out is not None and not out.stored:
                break
            offset += 1
        self.committed[queue] = offset

    # Broker events.

    def write(self, limit: int, refuse_after: int | None = None, everything: bool = False) -> None:
        """Flush the journal; the log may accept a part and then no more."""
        batch = self.core.take(self.now_ms, limit, everything)
        room = [1 << 30 if refuse_after is None else refuse_after]
        batch.urgent = self._checkpoints(batch.urgent, room)
        if not batch.urgent:
            batch.checkpoints = self._checkpoints(batch.checkpoints, room)
        if not batch.urgent and not batch.checkpoints:
            batch.acks = self._acks(batch, room)
        self.core.put_back(batch)

    def _checkpoints(self, checkpoints: list[Checkpoint], room: list[int]) -> list[Checkpoint]:
        timer_offset = self.log.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        refused = []
        for one in checkpoints:
            if not room[0]:
                refused.append(one)
                continue
            room[0] -= 1
            message = self.writer.checkpoint(one.record(), one.revive_queue, self.now_ms)
            offset = self._append(message)
            direct = message.topic != TIMER_TOPIC
            timer_offset = timer_offset if direct else offset
            self.core.checkpoint_written(one, timer_offset, direct)
            queue = one.book.queue_id
            for each in one.offsets_of(one.open):
                out = self.out[queue][each]
                out.stored, out.written_at = True, len(self.log.messages)
            self.settle(queue)
        return refused

    def _acks(self, batch: Batch, room: list[int]) -> list[Checkpoint]:
        refused = []
        for one in batch.acks:
            if not room[0]:
                refused.append(one)
                continue
            room[0] -= 1
            offsets = one.offsets_of(one.acks)
            visible_ms = one.visible_ms
            self._append(
                self.writer.ack(one.key, offsets, visible_ms, one.revive_queue, self.now_ms)
            )
            self.core.acks_written(one)
            done = self.done[one.book.queue_id]
            for each in offsets:
                if self.newest.get((one.book.queue_id, each)) is one:
                    done[each] = min(done[each], len(self.log.messages))
        return refused

    def _append(self, message: Message) -> int:
        message.born_host = message.store_host = HOST
        if message.topic == TIMER_TOPIC:
            due_ms = int(decode_properties(message.properties)["TIMER_DELIVER_MS"])
            self.waiting.append((due_ms, message))
        return self.log.append(message, self.now_ms)

    def surface(self) -> None:
        """Move due timers to the revive topic, if the journal wants them there."""
        due = sorted((one for one in self.waiting if one[0] <= self.now_ms), key=lambda one: one[0])
        self.waiting = [one for one in self.waiting if one[0] > self.now_ms]
        for _, message in due:
            record = decode(message.body)
            assert record is not None
            if self.core.wants(record):
                queue_id = int(decode_properties(message.properties)["REAL_QID"])
                copy = Message(
                    TOPIC, queue_id, message.body, message.properties, 0, 0, 0, HOST, HOST
                )
                self.log.append(copy, self.now_ms)
                self.surfaced += isinstance(record, CheckpointRecord)

    def watch(self) -> None:
        """Process the copies."""
        self.reader.watch(range(REVIVE_QUEUES))
        self.reader.follow_copies(1_000)

    def save(self) -> None:
        """Save the consumer offsets and the bookmarks of one moment."""
        offsets = self.reader.revive_offsets()
        marks = {(TOPIC, n): self.core.revive_mark(n, offset) for n, offset in offsets.items()}
        end = self.log.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        marks[TIMER_TOPIC, TIMER_QUEUE] = self.core.timer_mark(end)
        self.saved = Saved(len(self.log.messages), list(self.committed), marks)

    def recovered(self, length: int, marks: dict[Place, int]) -> PopJournal:
        """Return what a restart reads from the first records of the log."""
        core = new_core()
        reader = self.read(self.log.prefix(length), core, marks)
        while reader.step(2):
            core.validate()
        core.validate()
        return core
