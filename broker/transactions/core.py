"""The table of open transactions: which half messages wait for a word, and what a check round does.

    half()   a half message became visible in its queue       end()      its outcome was told
    op()     an op record came into the log                   decide()   the next step of a check round
    moved()  a copy took a half message's place               bookmarks()  where a restart reads from

Rules: broker semantics, sections 5.2 and 5.3. A half message stays in the table, at the place of its
newest copy, until an op record in the log names it. Promises: an outcome is taken once; the same
outcome again is fine, another one is not; a half message is asked about at its age at the earliest
and given up after `check_max` questions; what the bookmarks leave behind is done with. Pure: the time
is passed in, and what is to be done comes out. Derived: a restart builds it from both queues.

Bounded: by the half messages that are open (a dictionary entry of about 600 bytes each; retention and
the cap of checks end them), and by `OUTCOMES_MAX` and `BUFFER_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush

OUTCOMES_MAX = 10_000
"""Ends that are remembered so that a repeated word can be told from a contrary one: repetitions come
within seconds, from clients whose answer was lost."""
BUFFER_MAX = 20_000
"""Half messages that are done with and in no op record yet; beyond it the record is written at once."""

_OFFSETS_SLACK = 4_096
_ALL = 1 << 60


class Outcome(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up after too many checks"


class Step(Enum):
    """What a check round does with one half message."""

    ASK = "ask a producer, and put a copy behind the others"
    DEFER = "too young to be asked about: put a copy behind the others"
    GIVE_UP = "lay it aside"


@dataclass(slots=True)
class Half:
    """One half message."""

    offset: int
    """Its newest copy in the half queue."""
    physical: int
    """The same in the log."""
    size: int
    origin: int
    """The offset that transaction ids name: that of the message as it was sent."""
    topic: str
    queue_id: int
    key: str
    since_ms: int
    """Its age counts from here."""
    checks: int = 0
    immunity_ms: int | None = None
    outcome: Outcome = Outcome.OPEN
    certain: bool = True
    """False after a restart, until the log was searched for a commit whose op record was lost."""
    adopted: bool = False
    """A copy that a restart found without its original: its `origin` is its own place."""
    earlier: tuple[int, ...] = ()
    """Places in the log of the copies before, as far as a restart has seen them."""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """The times of a check, in ms."""

    timeout_ms: int
    check_max: int
    retention_ms: int


@dataclass(slots=True)
class TransactionTable:
    """See above. `first_half` and `first_op` are where reading begins."""

    rules: CheckRules
    first_half: int = 0
    """The next record of the half queue to come."""
    first_op: int = 0
    buffer: list[int] = field(default_factory=list)
    """Half offsets for the next op record, in the order in which they were done with."""
    buffer_bytes: int = 0
    _open: dict[int, Half] = field(default_factory=dict)  # by `offset`
    _offsets: list[int] = field(default_factory=list)  # a heap of theirs, and of some that are gone
    _origins: dict[int, Half] = field(default_factory=dict)
    _keys: dict[str, list[Half]] = field(default_factory=dict)
    _copies: set[int] = field(default_factory=set)  # made here, not read back yet
    _done: set[int] = field(default_factory=set)  # named by an op record before they were read
    _ops: deque[tuple[int, int]] = field(default_factory=deque)  # op offset, highest half offset
    _outcomes: OrderedDict[int, Outcome] = field(default_factory=OrderedDict)
    _round: deque[Half] = field(default_factory=deque)
    _topics: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        """Half messages that are open, and those whose end is in no op record yet."""
        return len(self._open)

    def __iter__(self) -> Iterator[Half]:
        return iter(list(self._open.values()))

    def waiting(self) -> dict[str, int]:
        """Open half messages by topic; 0 where there once were some."""
        return dict(self._topics)

    # What comes out of the queues.

    def half(self, half: Half, copy_of: int = -1) -> None:
        """The next record of the half queue; `copy_of` as the record tells it. Calls ascend."""
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
                done.add(half.offset)  # it was done with before the copy was made
        elif half.checks and half.origin == half.offset:
            half.adopted = True
        if not done:
            self._enter(half)

    def op(self, op_offset: int, halves: Iterable[int]) -> None:
        """The next record of the op queue. Calls ascend."""
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

    def _replaced(self, half: Half, copy_of: int) -> Half | None:
        """The half message that the record is a copy of, when it was not made here (after a restart).

        A copy made for a check has no link to its original: it is the oldest one of the same message
        that was asked about once less.
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

    def _enter(self, half: Half) -> None:
        self._open[half.offset] = half
        heappush(self._offsets, half.offset)
        self._origins[half.origin] = half
        self._keys.setdefault(half.key, []).append(half)
        self._topics[half.topic] = self._topics.get(half.topic, 0) + 1

    def _forget(self, half: Half) -> None:
        del self._open[half.offset]
        if self._origins.get(half.origin) is half:
            del self._origins[half.origin]
        same = self._keys[half.key]
        same.remove(half)
        if not same:
            del self._keys[half.key]
        if half.outcome is Outcome.OPEN:
            self._topics[half.topic] -= 1

    # What producers say.

    def find(self, offset: int, key: str) -> Half | None:
        """The half message that an id means: by its first offset, else by the message id alone.

        After a restart the first offset of some copies is not known any more, and a bare id (-1) has
        none.
        """
        half = self._origins.get(offset)
        if half is not None and half.key == key:
            return half
        for one in self._keys.get(key, ()):
            if offset < 0 or (one.adopted and one.origin > offset):
                return one
        return None

    def outcome_of(self, origin: int) -> Outcome | None:
        """How a transaction ended that is in the table no more; None when that is forgotten."""
        return self._outcomes.get(origin)

    def end(self, half: Half, outcome: Outcome) -> None:
        """The outcome of an open half message; its offset goes into the next op record."""
        assert half.outcome is Outcome.OPEN and outcome is not Outcome.OPEN
        half.outcome = outcome
        self._topics[half.topic] -= 1
        self.buffer.append(half.offset)
        self.buffer_bytes += len(str(half.offset)) + 1
        self._outcomes[half.origin] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            self._outcomes.popitem(last=False)

    def take_batch(self, max_bytes: int) -> list[int]:
        """The offsets of the next op record: as many as `max_bytes` of body hold, one at least."""
        size = count = 0
        for offset in self.buffer:
            size += len(str(offset)) + 1
            if count and size > max_bytes:
                break
            count += 1
        return self.buffer[:count]

    def op_written(self, offsets: list[int]) -> None:
        """An op record with the first of the buffer is in the log."""
        assert self.buffer[: len(offsets)] == offsets
        del self.buffer[: len(offsets)]
        self.buffer_bytes -= sum(len(str(offset)) + 1 for offset in offsets)
        for offset in offsets:
            half = self._open.get(offset)
            if half is not None:
                self._forget(half)

    # Check rounds.

    def begin_round(self) -> int:
        """All that are in the table now will be looked at; returns how many."""
        self._round = deque(self._open.values())
        return len(self._round)

    @property
    def left_in_round(self) -> int:
        """Half messages that the round has not looked at."""
        return len(self._round)

    def decide(self, now_ms: int, looks: int = _ALL) -> tuple[Half, Step] | None:
        """The next half message of the round that something is to be done with; None: there is none
        among the next `looks`."""
        for _ in range(min(looks, len(self._round))):
            half = self._round.popleft()
            if half.outcome is not Outcome.OPEN or self._open.get(half.offset) is not half:
                continue
            step = self._step(half, now_ms)
            if step is not None:
                return half, step
        return None

    def _step(self, half: Half, now_ms: int) -> Step | None:
        age = now_ms - half.since_ms
        if half.checks >= self.rules.check_max or age > self.rules.retention_ms:
            return Step.GIVE_UP
        if age < 0:
            return Step.ASK  # the clock was set back: its age cannot be told
        if half.immunity_ms is None:
            return Step.ASK if age >= self.rules.timeout_ms else None
        return Step.ASK if age >= half.immunity_ms else Step.DEFER

    def moved(self, half: Half, offset: int, physical: int, size: int, *, asked: bool) -> None:
        """A copy of the half message is in the log and takes its place."""
        assert offset >= self.first_half
        del self._open[half.offset]
        half.offset, half.physical, half.size = offset, physical, size
        half.checks += asked
        self._open[offset] = half
        heappush(self._offsets, offset)
        self._copies.add(offset)

    # Restarts.

    def bookmarks(self) -> tuple[int, int]:
        """Half and op offset that a restart has to read from; everything before is done with."""
        offsets = self._offsets
        if len(offsets) > _OFFSETS_SLACK + 2 * len(self._open):
            # Behind one that stays open long those that ended meanwhile must not pile up.
            offsets = self._offsets = sorted(self._open)
        while offsets and offsets[0] not in self._open:
            heappop(offsets)
        half = min(offsets[0], self.first_half) if offsets else self.first_half
        ops = self._ops
        while ops and ops[0][1] < half:
            ops.popleft()
        return half, ops[0][0] if ops else self.first_op
