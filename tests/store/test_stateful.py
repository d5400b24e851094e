"""The store against lists: any order of appends, dispatches, stops, kills and torn tails."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cometmq.store.format.record import decode
from cometmq.tests.store.kit import SEGMENT, Kit, message

Body = tuple[int, bytes]


class StoreMachine(RuleBasedStateMachine):
    """`sent` is what the log must hold; `visible` how much of it readers may at least see."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.kit = Kit(self.root / "store")
        self.sent: list[Body] = []
        self.ends: list[int] = []
        self.count = 0
        self.kept = 0  # what lies before it survived a start: it is on the disk

    def teardown(self) -> None:
        self.kit.store.close()
        shutil.rmtree(self.root)

    @initialize()
    def begin(self) -> None:
        self.kit.open()

    @rule(
        batch=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2500)), min_size=1, max_size=9)
    )
    def append(self, batch: list[tuple[int, int]]) -> None:
        messages = []
        for queue_id, size in batch:
            self.count += 1
            body = f"{self.count}:".encode().ljust(size, b".")
            messages.append(message(body, queue_id=queue_id, tags="T"))
            self.sent.append((queue_id, body))
        results = self.kit.store.writer.append_many(messages)
        self.ends += [result.end for result in results]

    @rule(part=st.floats(0, 1), records=st.integers(1, 20))
    def dispatch(self, part: float, records: int) -> None:
        limit = int(self.kit.store.log_end * part)
        before = self.kit.store.dispatched_offset
        arrivals = self.kit.store.writer.dispatch(limit, records)
        assert all(before <= a.physical_offset and a.end <= limit for a in arrivals)

    @rule()
    def stop_and_start(self) -> None:
        report = self.kit.reopen()
        assert report.clean
        self.kept = report.log_end

    @rule()
    def kill_and_start(self) -> None:
        self.kit.kill()
        report = self.kit.open()
        assert not report.clean
        assert report.torn_bytes == 0
        self.kept = report.log_end

    @rule()
    def write_out(self) -> None:
        self.kit.store.queue_table.write_out()

    @precondition(lambda self: self.sent and self.ends[-1] > self.kept)
    @rule(part=st.floats(0, 0.99))
    def kill_inside_the_last_append(self, part: float) -> None:
        end = self.ends[-1]
        size = len(self.kit.store.record_at(self._start_of_last()))
        begin = end - size
        self.kit.kill()
        self.kit.cut_tail(begin + int(size * part), end)
        report = self.kit.open()
        assert report.log_end in (begin, begin // SEGMENT * SEGMENT)
        self.kept = report.log_end
        self.sent.pop()
        self.ends.pop()

    def _start_of_last(self) -> int:
        *_, last = self.kit.records()
        return last.physical_offset

    @rule()
    def lose_the_queues(self) -> None:
        self.kit.kill()
        shutil.rmtree(self.kit.root / "consumequeue", ignore_errors=True)
        self.kept = self.kit.open().log_end

    @invariant()
    def the_log_is_the_list(self) -> None:
        if self.kit.store.refusal:
            return
        assert self.kit.bodies() == [body for _, body in self.sent]

    @invariant()
    def queues_are_parts_of_the_list(self) -> None:
        store = self.kit.store
        if store.refusal:
            return
        for queue_id in range(3):
            expected = [body for queue, body in self.sent if queue == queue_id]
            seen = self.kit.queue_bodies(queue_id=queue_id)
            assert seen == expected[: len(seen)]
            assert store.writer.next_offset("TopicTest", queue_id) == len(expected)
            if seen:
                (last,) = store.get("TopicTest", queue_id, len(seen) - 1, 1).records
                assert decode(last.data).queue_offset == len(seen) - 1
            if store.dispatched_offset == store.log_end:
                assert seen == expected


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
