"""Transaction table: one test per rule, and a state machine against a simulated log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.broker.transactions.core import (
    OUTCOMES_MAX,
    CheckRules,
    HalfMessage,
    Outcome,
    Step,
    TransactionTable,
)

TIMEOUT_MS, CHECK_MAX, RETENTION_MS = 6_000, 3, 3_600_000
START_MS = 1_000_000


def table() -> TransactionTable:
    return TransactionTable(CheckRules(TIMEOUT_MS, CHECK_MAX, RETENTION_MS))


def half(
    offset: int,
    key: str = "K",
    *,
    checks: int = 0,
    since_ms: int = START_MS,
    immunity_ms: int | None = None,
    origin: int | None = None,
) -> HalfMessage:
    return HalfMessage(
        offset,
        offset * 1000,
        100,
        offset if origin is None else origin,
        "t",
        0,
        key,
        since_ms,
        checks,
        immunity_ms,
    )


def round_of(made: TransactionTable, now_ms: int) -> list[tuple[int, Step]]:
    """Return the steps of a round without executing them."""
    made.begin_round()
    steps = []
    while (decided := made.decide(now_ms)) is not None:
        steps.append((decided[0].offset, decided[1]))
    return steps


def test_a_half_message_is_open_until_its_op_record_is_in_the_log() -> None:
    made = table()
    made.half(half(0, "A"))
    made.half(half(1, "B"))
    assert made.waiting() == {"t": 2}
    assert made.bookmarks() == (0, 0)
    found = made.find(0, "A")
    assert found is not None
    made.end(found, Outcome.COMMITTED)
    assert made.waiting() == {"t": 1}
    assert made.outcome_of(0) is Outcome.COMMITTED
    assert made.bookmarks() == (0, 0), "its op record is not in the log yet"
    batch = made.take_batch(4096)
    assert batch == [0]
    made.op_written(batch)
    assert made.find(0, "A") is None
    assert made.bookmarks() == (1, 0)
    made.op(0, [0])
    assert made.bookmarks() == (1, 1)
    assert made.waiting() == {"t": 1}


def test_an_op_record_that_comes_before_its_half_message_counts() -> None:
    made = table()
    made.op(0, [0, 2])
    for offset in range(3):
        made.half(half(offset, f"K{offset}"))
    assert [one.offset for one in made] == [1]
    assert made.bookmarks() == (1, 0)


def test_op_batches_keep_to_their_size_and_their_order() -> None:
    made = table()
    for offset in range(12):
        made.half(half(offset, str(offset)))
    for offset in (3, 1, 11, 10):
        found = made.find(offset, str(offset))
        assert found is not None
        made.end(found, Outcome.ROLLED_BACK)
    assert made.buffer_bytes == len("3,1,11,10,")
    assert made.take_batch(4) == [3, 1]
    made.op_written([3, 1])
    assert made.take_batch(1) == [11], "one at least"
    assert made.buffer_bytes == len("11,10,")


@pytest.mark.parametrize(
    ("age_ms", "immunity_ms", "step"),
    [
        (TIMEOUT_MS - 1, None, None),
        (TIMEOUT_MS, None, Step.ASK),
        (-1, None, Step.ASK),
        (1_999, 2_000, Step.DEFER),
        (2_000, 2_000, Step.ASK),
        (60_000, 3_600_000, Step.DEFER),
        (RETENTION_MS + 1, None, Step.ASK),  # at least once: the clock may have gone ahead
    ],
)
def test_age_and_immunity_determine_the_step(
    age_ms: int, immunity_ms: int | None, step: Step | None
) -> None:
    made = table()
    made.half(half(0, immunity_ms=immunity_ms))
    assert round_of(made, START_MS + age_ms) == ([(0, step)] if step else [])


def test_a_half_message_that_was_asked_for_is_given_up_when_retention_has_its_age() -> None:
    made = table()
    made.half(half(0, checks=1))
    assert round_of(made, START_MS + RETENTION_MS) == [(0, Step.ASK)]
    assert round_of(made, START_MS + RETENTION_MS + 1) == [(0, Step.GIVE_UP)]


def test_a_half_message_is_given_up_after_the_maximum_of_checks() -> None:
    made = table()
    made.half(half(0))
    now_ms = START_MS + TIMEOUT_MS
    for check in range(CHECK_MAX):
        assert round_of(made, now_ms) == [(check, Step.ASK)]
        (one,) = made
        made.moved(one, check + 1, 7, 100, asked=True)
        made.half(half(check + 1, checks=check + 1))
    assert round_of(made, now_ms) == [(CHECK_MAX, Step.GIVE_UP)]


def test_copies_during_the_immunity_do_not_count_as_checks() -> None:
    made = table()
    made.half(half(0, immunity_ms=60_000))
    for copy in range(1, 20):
        assert round_of(made, START_MS + 100) == [(copy - 1, Step.DEFER)]
        (one,) = made
        made.moved(one, copy, 7, 100, asked=False)
    assert made.find(0, "K") is one
    assert one.checks == 0


def test_a_half_message_ended_during_a_round_is_not_checked() -> None:
    made = table()
    for offset in range(3):
        made.half(half(offset, str(offset)))
    assert made.begin_round() == 3
    now_ms = START_MS + TIMEOUT_MS
    first = made.decide(now_ms)
    assert first is not None
    made.moved(first[0], 3, 7, 100, asked=True)
    second = made.find(1, "1")
    assert second is not None
    made.end(second, Outcome.COMMITTED)
    third = made.decide(now_ms)
    assert third is not None
    assert third[0].offset == 2
    assert made.decide(now_ms) is None, "the copy is the next round's"


def test_a_restart_links_a_copy_to_its_original() -> None:
    made = table()
    made.half(half(0, "A"))
    made.half(half(1, "A"))  # the client sent it twice
    made.half(half(2, "A", checks=1))
    assert sorted((one.offset, one.origin) for one in made) == [(1, 1), (2, 0)]
    found = made.find(0, "A")
    assert found is not None
    assert (found.offset, found.earlier) == (2, (0,))


def test_a_restart_finds_a_copy_without_original_by_message_id() -> None:
    made = table()
    made.first_half = 40
    made.half(half(40, "A", checks=2))
    made.half(half(41, "B"))
    found = made.find(7, "A")
    assert found is not None
    assert found.offset == 40
    assert made.find(7, "B") is None, "B begins at 41: no other id means it"
    assert made.find(-1, "B") is not None, "a bare message id does"
    assert made.find(50, "A") is None, "an id from behind the copy is of another message"


def test_an_immune_copy_contains_its_originals_offset() -> None:
    made = table()
    made.first_half = 9
    made.half(half(9, "A", immunity_ms=60_000, origin=3), copy_of=3)
    found = made.find(3, "A")
    assert found is not None
    assert found.offset == 9
    other = table()
    other.op(0, [3])
    other.first_half = 3
    other.op(1, [3])
    other.half(half(9, "A", origin=3), copy_of=3)
    assert len(other) == 0, "an end of the original is an end of the copy"


def test_stored_outcomes_are_bounded() -> None:
    made = table()
    for offset in range(OUTCOMES_MAX + 5):
        one = half(offset, str(offset))
        made.half(one)
        made.end(one, Outcome.COMMITTED)
        made.op_written(made.take_batch(100))
    assert made.outcome_of(4) is None
    assert made.outcome_of(5) is Outcome.COMMITTED
    assert len(made) == 0


@dataclass
class Expected:
    """The model's state of a transaction."""

    key: str
    since_ms: int
    immunity_ms: int | None
    #: Half offset of the newest copy.
    newest: int
    asked: int = 0
    outcome: Outcome = Outcome.OPEN
    in_op: bool = False


@dataclass
class Line:
    """A record of the half queue."""

    key: str
    checks: int
    copy_of: int
    since_ms: int
    immunity_ms: int | None


@dataclass
class Disk:
    """The state after a crash."""

    halves: list[Line] = field(default_factory=list)
    ops: list[list[int]] = field(default_factory=list)
    marks: tuple[int, int] = (0, 0)


class Transactions(RuleBasedStateMachine):
    """Sends, ends, op records, rounds, lost responses and crashes in random order."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self.disk = Disk()
        self.table = table()
        self.expected: dict[str, Expected] = {}

    # The log.

    @rule(immunity_s=st.one_of(st.none(), st.integers(0, 20)))
    def send(self, immunity_s: int | None) -> None:
        key = f"K{len(self.expected)}"
        immunity_ms = None if immunity_s is None else immunity_s * 1000
        offset = len(self.disk.halves)
        self.disk.halves.append(Line(key, 0, -1, self.now_ms, immunity_ms))
        self.expected[key] = Expected(key, self.now_ms, immunity_ms, offset)

    @rule(count=st.integers(1, 4))
    def read_halves(self, count: int) -> None:
        for offset in range(self.table.first_half, len(self.disk.halves))[:count]:
            line = self.disk.halves[offset]
            one = half(
                offset,
                line.key,
                checks=line.checks,
                since_ms=line.since_ms,
                immunity_ms=line.immunity_ms,
                origin=line.copy_of if line.copy_of >= 0 else None,
            )
            self.table.half(one, line.copy_of)

    @rule(count=st.integers(1, 2))
    def read_ops(self, count: int) -> None:
        for offset in range(self.table.first_op, len(self.disk.ops))[:count]:
            self.table.op(offset, self.disk.ops[offset])

    @rule(ms=st.integers(0, 20_000))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    # Producers.

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.COMMITTED, Outcome.ROLLED_BACK]))
    def word(self, data: st.DataObject, outcome: Outcome) -> None:
        expected = self.expected[data.draw(st.sampled_from(sorted(self.expected)))]
        found = self.table.find(-1, expected.key)
        if found is None or found.outcome is not Outcome.OPEN:
            return
        assert expected.outcome is Outcome.OPEN, "what has ended is found no more, or as ended"
        self.table.end(found, outcome)
        expected.outcome = outcome

    # The leader's own records.

    @rule(max_bytes=st.integers(1, 20))
    def write_ops(self, max_bytes: int) -> None:
        batch = self.table.take_batch(max_bytes)
        if batch:
            self.disk.ops.append(list(batch))
            self.table.op_written(batch)
            for expected in self.expected.values():
                expected.in_op |= expected.newest in batch

    @rule(at_most=st.integers(0, 5))
    def round(self, at_most: int) -> None:
        self.table.begin_round()
        for _ in range(at_most):
            decided = self.table.decide(self.now_ms)
            if decided is None:
                return
            self._do(*decided)

    def _do(self, one: HalfMessage, step: Step) -> None:
        expected = self.expected[one.key]
        assert expected.outcome is Outcome.OPEN, "an ended transaction is not checked"
        assert expected.newest == one.offset
        age = self.now_ms - expected.since_ms
        if step is Step.GIVE_UP:
            assert expected.asked >= CHECK_MAX
            self.table.end(one, Outcome.GIVEN_UP)
            expected.outcome = Outcome.GIVEN_UP
            return
        line = self.disk.halves[one.offset]
        offset = len(self.disk.halves)
        if step is Step.ASK:
            wait = TIMEOUT_MS if expected.immunity_ms is None else expected.immunity_ms
            assert age >= wait, "never before its time"
            assert expected.asked < CHECK_MAX
            expected.asked += 1
            copy = Line(line.key, expected.asked, line.copy_of, line.since_ms, line.immunity_ms)
        else:
            copy = Line(line.key, line.checks, one.origin, line.since_ms, line.immunity_ms)
        self.disk.halves.append(copy)
        self.table.moved(one, offset, offset * 1000, 100, asked=step is Step.ASK)
        expected.newest = offset

    # Restarts.

    @rule()
    def save(self) -> None:
        half_mark, op_mark = self.table.bookmarks()
        assert half_mark >= self.disk.marks[0]
        assert op_mark >= self.disk.marks[1]
        self.disk.marks = (half_mark, op_mark)

    @rule()
    def crash(self) -> None:
        """Ends without an op record are lost (recovery finds a commit in the log)."""
        self.table = table()
        self.table.first_half, self.table.first_op = self.disk.marks
        while self.table.first_op < len(self.disk.ops):
            self.read_ops(1)
        while self.table.first_half < len(self.disk.halves):
            self.read_halves(1)
        for expected in self.expected.values():
            if not expected.in_op:
                expected.outcome = Outcome.OPEN
        open_now = sorted(one.key for one in self.table)
        assert open_now == sorted(
            expected.key for expected in self.expected.values() if not expected.in_op
        )

    @invariant()
    def what_is_open_is_at_its_newest_copy(self) -> None:
        for one in self.table:
            expected = self.expected[one.key]
            assert one.offset == expected.newest
            assert one.outcome is expected.outcome
            assert one.checks == expected.asked
            assert not expected.in_op

    @invariant()
    def nothing_open_is_left_behind(self) -> None:
        mark, op_mark = self.table.bookmarks()
        for expected in self.expected.values():
            assert expected.in_op or expected.newest >= mark
        for op_offset, halves in enumerate(self.disk.ops):
            assert op_offset >= op_mark or all(offset < mark for offset in halves)


Transactions.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase
