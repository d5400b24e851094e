"""The pop journal against a model: a crash at any record loses, repeats and advances nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cometmq.broker.journal.core import PopJournal
from cometmq.tests.broker.journal.journal_world import QUEUES, World, new_core

INVISIBLE = st.sampled_from([0, 1, 900, 3_500, 10_000, 60_000])
PICK = st.integers(0, 10_000)


class Journals(RuleBasedStateMachine):
    """Random events, with a crash possible after any record."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.follower = new_core()
        self.along = self.world.read(self.world.log, self.follower, {})

    def one_out(self, pick: int) -> tuple[int, int] | None:
        """Return one of the messages in flight."""
        everything = [(q, o) for q in range(QUEUES) for o in sorted(self.world.out[q])]
        return everything[pick % len(everything)] if everything else None

    @rule(
        queue=st.integers(0, QUEUES - 1),
        gaps=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        invisible_ms=INVISIBLE,
    )
    def pop(self, queue: int, gaps: list[int], invisible_ms: int) -> None:
        self.world.now_ms += 1
        self.world.pop(queue, gaps, invisible_ms)

    @rule(picks=st.lists(PICK, min_size=1, max_size=4))
    def ack(self, picks: list[int]) -> None:
        for pick in picks:
            if (found := self.one_out(pick)) is not None:
                self.world.ack(*found)

    @rule(pick=PICK, invisible_ms=INVISIBLE, suspended=st.booleans())
    def change(self, pick: int, invisible_ms: int, suspended: bool) -> None:
        if (found := self.one_out(pick)) is not None:
            self.world.change(*found, invisible_ms, suspended)

    @rule(ms=st.sampled_from([1, 150, 999, 1_000, 3_000, 20_000, -500]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    @rule(limit=st.integers(1, 12), refuse_after=st.none() | st.integers(0, 4))
    def flush(self, limit: int, refuse_after: int | None) -> None:
        self.world.write(limit, refuse_after)

    @rule()
    def surface(self) -> None:
        self.world.surface()

    @rule()
    def watch(self) -> None:
        self.world.watch()

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule(limit=st.integers(1, 6))
    def follow(self, limit: int) -> None:
        self.along.watch(range(3))
        self.along.step(limit)
        self.follower.validate()

    @rule(back=st.integers(0, 12))
    def crash(self, back: int) -> None:
        """The log may lose its end, but nothing on which saved offsets rely."""
        length = max(self.world.saved.length, len(self.world.log.messages) - back)
        self.check(self.world.recovered(length, self.world.saved.marks), length, "marks")
        self.check(self.world.recovered(length, {}), length, "everything")

    @precondition(lambda self: self.world.core.open_count)
    @rule(pick=PICK)
    def clean_stop(self, pick: int) -> None:
        """After a stop every message in flight is in the log."""
        self.world.now_ms += pick % 7
        while self.world.core.waiting:
            self.world.write(5, everything=True)
        length = len(self.world.log.messages)
        core = self.world.recovered(length, self.world.saved.marks)
        self.check(core, length, "stop")
        assert core.open_count == sum(map(len, self.world.out))

    def check(self, core: PopJournal, length: int, how: str) -> None:
        """Compare a recovery with the model."""
        world = self.world
        for queue in range(QUEUES):
            book = core.book("t", "g", queue)
            committed = world.saved.committed[queue]
            for offset, out in world.out[queue].items():
                checkpoint = book.open.get(offset)
                lost = offset < committed and checkpoint is None
                assert not lost, (how, "lost", queue, offset, out)
                assert offset not in book.consumed, (how, "considered done", queue, offset, out)
                if out.written_at <= length:
                    assert checkpoint is not None, (how, "forgotten", queue, offset)
                    assert checkpoint.visible_ms == out.visible_ms, (how, offset)
                    assert checkpoint.pop_ms == out.pop_ms, (how, offset)
                    assert checkpoint.suspended == out.suspended, (how, offset)
            for offset, known_at in world.done[queue].items():
                if known_at <= length:
                    assert offset not in book.open, (how, "came back", queue, offset)

    @invariant()
    def sound(self) -> None:
        self.world.core.validate()
        assert self.world.core.open_count == sum(map(len, self.world.out))

    def teardown(self) -> None:
        self.along.watch(range(3))
        while self.along.step(50):
            pass
        length = len(self.world.log.messages)
        self.check(self.follower, length, "follower")
        mine = {
            offset: one.key
            for book in self.world.core.all_books()
            for offset, one in book.open.items()
            if one.timer_offset >= 0
        }
        theirs = {o: one.key for book in self.follower.all_books() for o, one in book.open.items()}
        assert mine.keys() <= theirs.keys()


Journals.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestJournals = Journals.TestCase
