"""Transaction table: the open half messages, and the steps of a check round. Pure, derived.

    half()       a half message became visible in its queue
    op()         an op record came into the log
    moved()      a copy replaced a half message
    end()        its outcome arrived
    decide()     the next step of a check round
    bookmarks()  where a restart reads from

Rules: docs/formats/broker-semantics.md, sections 5.2 and 5.3. A half message stays in the table, at
the position of its newest copy, until an op record in the log names it. An outcome is accepted
once; repeating it succeeds, a different one fails. A half message is checked at its configured age
at the earliest and given up after `check_max` checks; everything before the bookmarks is done. The
time is passed in, and the steps to take are returned. A restart rebuilds the table from both
queues.

Bounded by the open half messages (a dictionary entry of about 600 bytes each; retention and the
limit of checks end them), and by `OUTCOMES_MAX` and `BUFFER_MAX`.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from heapq import heappop, heappush
from itertools import islice

from msgspec import Struct, field

#: Outcomes remembered to distinguish a repeated end from a contradicting one: clients whose
#: response was lost repeat within seconds. Eight bytes each, from the start.
OUTCOMES_MAX = 1 << 14
#: Done half messages without an op record; beyond this the record is written at once.
BUFFER_MAX = 20_000

_OFFSETS_SLACK = 4_096
_ALL = 1 << 60


class Outcome(Enum):
    """The outcome of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up after too many checks"


_OUTCOMES = tuple(Outcome)


class Step(Enum):
    """A step of a check round for one half message."""

    ASK = "check with a producer, and append a copy"
    DEFER = "too young for a check: append a copy"
    GIVE_UP = "move it to the parking topic"


class HalfMessage(Struct):
    """One half message."""

    #: Queue offset of its newest copy in the half queue.
    offset: int
    #: Physical offset of its newest copy.
    physical: int
    size: int
    #: The offset in transaction ids: that of the message as sent.
    origin: int
    topic: str
    queue_id: int
    key: str
    #: Its age counts from here.
    since_ms: int
    checks: int = 0
    immunity_ms: int | None = None
    outcome: Outcome = Outcome.OPEN
    #: False after a restart, until the log was searched for a commit whose op record was lost.
    certain: bool = True
    #: A copy that a restart found without its original: `origin` is its own offset.
    adopted: bool = False
    #: Physical offsets of the earlier copies that recovery has read.
    earlier: tuple[int, ...] = ()


class CheckRules(Struct, frozen=True):
    """Times of a check, in ms."""

    timeout_ms: int
    check_max: int
    retention_ms: int


class TransactionTable(Struct):
    """See above. Reading starts at `first_half` and `first_op`."""

    rules: CheckRules
    #: The offset of the next record of the half queue.
    first_half: int = 0
    first_op: int = 0
    #: Half offsets for the next op record, in the order in which they were done.
    buffer: list[int] = field(default_factory=list)
    buffer_bytes: int = 0
    _open: dict[int, HalfMessage] = field(default_factory=dict)  # by `offset`
    _offsets: list[int] = field(
        default_factory=list
    )  # a heap of theirs, and of some that are removed
    _origins: dict[int, HalfMessage] = field(default_factory=dict)
    _keys: dict[str, list[HalfMessage]] = field(default_factory=dict)
    _copies: set[int] = field(default_factory=set)  # created here, not read back yet
    _done: set[int] = field(default_factory=set)  # named by an op record before they were read
    _ops: deque[tuple[int, int]] = field(default_factory=deque)  # op offset, highest half offset
    #: At `origin % OUTCOMES_MAX`: the origin and the number of the outcome.
    _outcomes: array[int] = field(default_factory=lambda: array("q", bytes(8 * OUTCOMES_MAX)))
    _round: deque[HalfMessage] = field(default_factory=deque)
    _topics: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of open half messages, and of those whose end is in no op record yet."""
        return len(self._open)

    def __iter__(self) -> Iterator[HalfMessage]:
        return iter(list(self._open.values()))

    def first(self, count: int) -> list[HalfMessage]:
        """Return at most `count` half messages of the table, those untouched longest first."""
        return list(islice(self._open.values(), count))

    def waiting(self) -> dict[str, int]:
        """Open half messages by topic; 0 for topics that had some."""
        return dict(self._topics)

    # Records of the queues.

    def half(self, half: HalfMessage, copy_of: int = -1) -> None:
        """Process the next record of the half queue; `copy_of` comes from the record. Offsets must
        ascend.
        """
        assert half.offset >= self.first_half, (half.offset, self.first_half)
        self.first_half = half.offset + 1
        if half.offset in self._copies:
            self._copies.discard(half.offset)
            return
        replaced = self._replaced(half, copy_of)
        done = {half.offset, copy_of} & self._done
        self._done -= done
        if replaced is not None:
            half.origin, half.since_ms = replaced.origin, replaced.since_ms
            half.earlier = (*replaced.earlier, replaced.physical)
            half.adopted = replaced.adopted
            half.certain = half.certain and replaced.certain
            if replaced.outcome is Outcome.OPEN:
                self._forget(replaced)
            else:
                done.add(half.offset)  # it was done before the copy was created
        elif half.checks and half.origin == half.offset:
            half.adopted = True
        if not done:
            self._enter(half)

    def op(self, op_offset: int, halves: Iterable[int]) -> None:
        """Process the next record of the op queue. Offsets must ascend."""
        self.first_op = op_offset + 1
        highest = -1
        for offset in halves:
            highest = max(highest, offset)
            half = self._open.get(offset)
            if half is not None:
                self._forget(half)
            elif offset >= self.first_half and offset not in self._copies:
                self._done.add(offset)
        self._ops.append((op_offset, highest))

    def _replaced(self, half: HalfMessage, copy_of: int) -> HalfMessage | None:
        """Return the half message of which the record is a copy that was not created here (after a
        restart).

        A copy created for a check has no link to its original: it is the oldest one of the same
        message with one check less.
        """
        if copy_of >= 0:
            found = self._origins.get(copy_of) or self._open.get(copy_of)
            if found is not None:
                return found
        if half.checks == 0:
            return None
        for other in self._keys.get(half.key, ()):
            if other.checks == half.checks - 1 and other.topic == half.topic:
                return other
        return None

    def _enter(self, half: HalfMessage) -> None:
        self._open[half.offset] = half
        heappush(self._offsets, half.offset)
        self._origins[half.origin] = half
        self._keys.setdefault(half.key, []).append(half)
        self._topics[half.topic] = self._topics.get(half.topic, 0) + 1

    def _forget(self, half: HalfMessage) -> None:
        del self._open[half.offset]
        if self._origins.get(half.origin) is half:
            del self._origins[half.origin]
        same = self._keys[half.key]
        same.remove(half)
        if not same:
            del self._keys[half.key]
        if half.outcome is Outcome.OPEN:
            self._topics[half.topic] -= 1

    # Ends from producers.

    def find(self, offset: int, key: str) -> HalfMessage | None:
        """Return the half message of an id: by its first offset, else by the message id alone.

        After a restart the first offset of some copies is unknown, and a bare id (-1) has none.
        """
        half = self._origins.get(offset)
        if half is not None and half.key == key:
            return half
        for one in self._keys.get(key, ()):
            if offset < 0 or (one.adopted and one.origin > offset):
                return one
        return None

    def outcome_of(self, origin: int) -> Outcome | None:
        """Return the outcome of a transaction that is no longer in the table; None if it was
        dropped.
        """
        found, number = divmod(self._outcomes[origin % OUTCOMES_MAX], len(_OUTCOMES))
        return _OUTCOMES[number] if found == origin and number else None

    def end(self, half: HalfMessage, outcome: Outcome) -> None:
        """Set the outcome of an open half message; its offset goes into the next op record."""
        assert half.outcome is Outcome.OPEN and outcome is not Outcome.OPEN
        half.outcome = outcome
        self._topics[half.topic] -= 1
        self.buffer.append(half.offset)
        self.buffer_bytes += len(str(half.offset)) + 1
        number = half.origin * len(_OUTCOMES) + _OUTCOMES.index(outcome)
        self._outcomes[half.origin % OUTCOMES_MAX] = number

    def take_batch(self, max_bytes: int) -> list[int]:
        """Return the offsets of the next op record: as many as fit into `max_bytes`, at least
        one.
        """
        size = count = 0
        for offset in self.buffer:
            size += len(str(offset)) + 1
            if count and size > max_bytes:
                break
            count += 1
        return self.buffer[:count]

    def op_written(self, offsets: list[int]) -> None:
        """Record that an op record with the first buffered offsets is in the log."""
        assert self.buffer[: len(offsets)] == offsets
        del self.buffer[: len(offsets)]
        self.buffer_bytes -= sum(len(str(offset)) + 1 for offset in offsets)
        for offset in offsets:
            half = self._open.get(offset)
            if half is not None:
                self._forget(half)

    # Check rounds.

    def begin_round(self) -> int:
        """Start a round over all half messages in the table; return their number."""
        self._round = deque(self._open.values())
        return len(self._round)

    @property
    def left_in_round(self) -> int:
        """Return the number of half messages that the round has not processed."""
        return len(self._round)

    def decide(self, now_ms: int, looks: int = _ALL) -> tuple[HalfMessage, Step] | None:
        """Return the next half message of the round that needs a step; None if none of the next
        `looks` does.
        """
        for _ in range(min(looks, len(self._round))):
            half = self._round.popleft()
            if half.outcome is not Outcome.OPEN or self._open.get(half.offset) is not half:
                continue
            step = self._step(half, now_ms)
            if step is not None:
                return half, step
        return None

    def _step(self, half: HalfMessage, now_ms: int) -> Step | None:
        age = now_ms - half.since_ms
        if half.checks >= self.rules.check_max:
            return Step.GIVE_UP
        if age > self.rules.retention_ms:
            # Asked once at least: the clock may have gone ahead.
            return Step.GIVE_UP if half.checks else Step.ASK
        if age < 0:
            return Step.ASK  # the clock was set back: its age is unknown
        if half.immunity_ms is None:
            return Step.ASK if age >= self.rules.timeout_ms else None
        return Step.ASK if age >= half.immunity_ms else Step.DEFER

    def moved(
        self, half: HalfMessage, offset: int, physical: int, size: int, *, asked: bool
    ) -> None:
        """Record that a copy of the half message is in the log and replaces it."""
        assert offset >= self.first_half
        del self._open[half.offset]
        half.offset, half.physical, half.size = offset, physical, size
        half.checks += asked
        self._open[offset] = half
        heappush(self._offsets, offset)
        self._copies.add(offset)

    # Restarts.

    def bookmarks(self) -> tuple[int, int]:
        """Return the half and op offset from which a restart must read; everything before is
        done.
        """
        offsets = self._offsets
        if len(offsets) > _OFFSETS_SLACK + 2 * len(self._open):
            # Finished half messages must not accumulate behind one that stays open.
            offsets = self._offsets = sorted(self._open)
        while offsets and offsets[0] not in self._open:
            heappop(offsets)
        half = min(offsets[0], self.first_half) if offsets else self.first_half
        ops = self._ops
        while ops and ops[0][1] < half:
            ops.popleft()
        return half, ops[0][0] if ops else self.first_op
