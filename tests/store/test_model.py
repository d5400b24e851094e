"""The whole store against a list: crashes keep, lose or tear every page that was not flushed.

The store runs on a `FakeDisk`. Its flush threads sleep; the machine flushes, so that every run can
be repeated. After any crash: nothing that was flushed is lost, what is there is a prefix of what
was appended, queue offsets have no gap, and queues and index are what a rebuild from the log makes.
Retention deletes the first segments beside queues that are flushed seldom: the ends of the queues
never go back.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Space
from cometmq.store.format.record import decode, encode_properties
from cometmq.store.format.results import PutStatus
from cometmq.store.message_store import MessageStore
from cometmq.tests.example_budget import scaled
from cometmq.tests.store.fake_disk import FakeDisk, Fate, Page
from cometmq.tests.store.kit import Kit, message
from cometmq.tests.store.retention_kit import rounds

SEGMENT = 4 * 4096
QUEUES = 3
LARGEST = 6000
SLEEP_MS = 1_000_000_000
OPTIONS: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 20,
    "max_index_num": 60,
    "flush_interval_commit_log": SLEEP_MS,
    "flush_commit_log_thorough_interval": SLEEP_MS,
    "flush_interval_consume_queue": SLEEP_MS,
    "flush_consume_queue_thorough_interval": SLEEP_MS,
    "delete_commit_log_files_interval": 0,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that was appended."""

    queue_id: int
    body: bytes
    key: str
    start: int
    end: int


class EmptyDisk(FakeDisk):
    """Retention must not act on the use of this machine's disk."""

    def space(self, path: str) -> Space:
        return Space(100 << 30, 90 << 30, 90 << 30)


class FakeKit(Kit):
    """A kit whose stores run on a fake disk, the same one as long as the power is on."""

    fake: FakeDisk | None = None

    def _new(self) -> MessageStore:
        if self.fake is None or self.fake.root != self.root:
            self.fake = EmptyDisk(self.root)
        self.disk = self.fake
        config = StoreConfig(str(self.root), **self.options)
        return MessageStore(config, lambda: self.now_ms, self.disk)


class StoreModel(RuleBasedStateMachine):
    """`sent` is what the log holds, `flushed` the offset that is certainly on the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.kit = FakeKit(self.folder / "store-0", **OPTIONS)
        self.lives = 0
        self.sent: list[Sent] = []
        self.flushed = 0
        self.count = 0
        self.failed = False

    def teardown(self) -> None:
        self.kit.disk.fault = None
        self.kit.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.kit.open()

    # -- writing ------------------------------------------------------------------------------

    def new_message(self, queue_id: int, size: int) -> tuple[Any, bytes, str]:
        self.count += 1
        body = f"{self.count}:".encode().ljust(size, b".")
        key = f"key-{self.count}"
        properties = encode_properties({"UNIQ_KEY": key, "KEYS": "all", "TAGS": "T"})
        return message(body, queue_id=queue_id, properties=properties), body, key

    def note(self, results: list[Any], made: list[tuple[Any, bytes, str]]) -> None:
        for result, (appended, body, key) in zip(results, made, strict=True):
            if self.failed:
                assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
                continue
            assert result.status is PutStatus.PUT_OK
            assert result.queue_offset == sum(s.queue_id == appended.queue_id for s in self.sent)
            self.sent.append(Sent(appended.queue_id, body, key, result.physical_offset, result.end))

    @rule(
        batch=st.lists(
            st.tuples(st.integers(0, QUEUES - 1), st.integers(0, LARGEST)), min_size=1, max_size=8
        )
    )
    def append(self, batch: list[tuple[int, int]]) -> None:
        made = [self.new_message(*each) for each in batch]
        self.note(self.kit.store.writer.append_many([each[0] for each in made]), made)

    @rule(queue_id=st.integers(0, QUEUES - 1), sizes=st.lists(st.integers(0, 900), max_size=8))
    def append_batch(self, queue_id: int, sizes: list[int]) -> None:
        made = [self.new_message(queue_id, size) for size in [*sizes, 10]]
        results = self.kit.store.writer.append_batch([each[0] for each in made])
        self.note(results, made)
        if not self.failed:
            assert len({result.physical_offset // SEGMENT for result in results}) == 1

    @rule(part=st.floats(0, 1), records=st.integers(1, 30))
    def dispatch(self, part: float, records: int) -> None:
        limit = int(self.kit.store.log_end * part)
        before = self.kit.store.dispatched_offset
        arrivals = self.kit.store.writer.dispatch(limit, records)
        assert all(before <= a.physical_offset and a.end <= limit for a in arrivals)

    @precondition(lambda self: not self.failed)
    @rule()
    def flush_log(self) -> None:
        flusher = self.kit.store._threads._log_flusher
        assert flusher is not None
        flusher._flush()
        self.flushed = self.kit.store.log_end
        assert self.kit.store.flushed_offset == self.flushed

    @precondition(lambda self: not self.failed)
    @rule()
    def flush_queues(self) -> None:
        flusher = self.kit.store._threads._queue_flusher
        assert flusher is not None
        flusher.finish()

    @precondition(lambda self: not self.failed)
    @rule()
    def write_queues_out(self) -> None:
        self.kit.store.queue_table.write_out()

    @precondition(lambda self: not self.failed and self.kit.store.log_end > self.flushed)
    @rule()
    def a_flush_fails(self) -> None:
        """The store is read-only from then on: no later flush may be trusted."""

        def fail(name: str) -> None:
            if name in ("fdatasync", "fsync"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        self.kit.disk.fault = fail
        flusher = self.kit.store._threads._log_flusher
        assert flusher is not None
        with pytest.raises(OSError, match="Input/output"):
            flusher._flush()
        self.kit.store.gate.refuse("fdatasync of the commit log failed.")
        self.kit.disk.fault = None
        self.failed = True
        assert not self.kit.store.writable
        assert self.kit.store.flushed_offset <= self.flushed

    @precondition(lambda self: not self.failed)
    @rule(ready=st.booleans())
    def retention_deletes(self, ready: bool) -> None:
        """The first segments are old; only what is flushed and dispatched may go."""
        store = self.kit.store
        if ready:
            made = [self.new_message(n % QUEUES, LARGEST) for n in range(2 * QUEUES)]
            self.note(store.writer.append_many([each[0] for each in made]), made)
            self.kit.dispatch()
            self.flush_log()
        rounds(store)
        self.flushed = store.flushed_offset
        assert store.log_start <= min(self.flushed, store.dispatched_offset)

    # -- life ---------------------------------------------------------------------------------

    @precondition(lambda self: not self.failed)
    @rule()
    def stop_and_start(self) -> None:
        self.kit.close()
        assert self.kit.open().clean
        self.flushed = self.kit.store.flushed_offset

    @rule()
    def kill_and_start(self) -> None:
        self.kit.kill()
        report = self.kit.open()
        assert not report.clean
        assert report.torn_bytes == 0
        self.after_a_crash(len(self.left()))

    @rule(
        seed=st.integers(0, 1 << 32),
        pages=st.sampled_from([(Page.LOST,), (Page.KEPT,), (Page.KEPT, Page.LOST), tuple(Page)]),
        names=st.booleans(),
    )
    def lose_power_and_start(self, seed: int, pages: tuple[Page, ...], names: bool) -> None:
        self.settle()
        self.lives += 1
        left = self.folder / f"store-{self.lives}"
        assert self.kit.fake is not None
        self.kit.fake.crash(left, Fate(seed, pages, names))
        self.kit.kill()
        shutil.rmtree(self.kit.root)
        self.kit.root = left
        report = self.kit.open()
        assert not report.clean
        held, there = sum(1 for _ in self.kit.records()), self.left()
        assert [s.body for s in there[:held]] == self.kit.bodies(), "a prefix"
        assert held >= sum(s.end <= self.flushed for s in there), "what was flushed is there"
        if pages == (Page.KEPT,) and not names:
            assert held == len(there)
        self.after_a_crash(held)

    def left(self) -> list[Sent]:
        """Return what retention has left."""
        return [sent for sent in self.sent if sent.start >= self.kit.store.log_start]

    def settle(self) -> None:
        """Let the thread that makes segments ahead come to its end, so that a run can be
        repeated."""
        allocator = self.kit.store.log._allocator
        with allocator._changed:
            assert allocator._changed.wait_for(lambda: allocator._thread is None, 30)

    def after_a_crash(self, held: int) -> None:
        """`held` of what retention has left are there."""
        del self.sent[len(self.sent) - len(self.left()) + held :]
        self.flushed = self.kit.store.flushed_offset  # what the next crash is held against
        assert self.flushed == self.kit.store.log_end
        self.failed = False

    @precondition(lambda self: not self.failed and self.kit.store.log_start == 0)
    @rule()
    def compare_with_a_rebuild(self) -> None:
        """Queues and index made from the log alone are those that grew with it."""
        self.kit.dispatch()
        self.kit.close()
        rebuilt = FakeKit(self.folder / "rebuilt", **OPTIONS)
        rebuilt.root.mkdir()
        if (self.kit.root / "commitlog").is_dir():
            shutil.copytree(self.kit.root / "commitlog", rebuilt.root / "commitlog")
        rebuilt.open()
        rebuilt.dispatch()
        for sent in self.sent:
            assert keys_found(rebuilt.store, sent.key) == [sent.start]
        rebuilt.close()
        mine = self.kit.queue_files() if (self.kit.root / "consumequeue").is_dir() else {}
        if (rebuilt.root / "consumequeue").is_dir():
            assert rebuilt.queue_files() == mine
        shutil.rmtree(rebuilt.root)
        self.kit.open()
        self.flushed = self.kit.store.flushed_offset

    # -- reading ------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 1 << 30))
    def query_a_key(self, pick: int) -> None:
        sent = self.sent[pick % len(self.sent)]
        found = keys_found(self.kit.store, sent.key)
        if sent.start < self.kit.store.log_start:
            assert found == []
        elif sent.end <= self.kit.store.dispatched_offset and not self.failed:
            assert found == [sent.start]
        else:  # a read-only store does not write its index any more
            assert found in ([], [sent.start] if self.failed else [])

    @precondition(lambda self: not self.failed)
    @rule()
    def query_all(self) -> None:
        seen = [s.start for s in self.left() if s.end <= self.kit.store.dispatched_offset]
        assert keys_found(self.kit.store, "all") == seen[-64:]

    @invariant()
    def the_log_is_the_list(self) -> None:
        assert self.kit.bodies() == [sent.body for sent in self.left()]
        assert self.kit.store.flushed_offset <= self.kit.store.log_end

    @invariant()
    def queues_are_parts_of_the_list(self) -> None:
        store = self.kit.store
        for queue_id in range(QUEUES):
            expected = [sent for sent in self.sent if sent.queue_id == queue_id]
            known = [sent for sent in expected if sent.end <= store.dispatched_offset]
            seen = self.kit.queue_bodies(queue_id=queue_id)
            assert seen == [sent.body for sent in known if sent.start >= store.log_start]
            assert store.writer.next_offset("TopicTest", queue_id) == len(expected)
            if seen:
                (last,) = store.get("TopicTest", queue_id, len(known) - 1, 1).records
                assert decode(last.data).queue_offset == len(known) - 1


def keys_found(store: MessageStore, key: str) -> list[int]:
    return [record.physical_offset for record in store.queries.query("TopicTest", key)]


def run(examples: int, steps: int) -> None:
    """Run `examples` random stories of the model, each with up to `steps` steps."""
    run_state_machine_as_test(
        StoreModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def story(seed: int, steps: int = 16) -> None:
    """Run a random story of retention beside seldom flushes of queues, kills and power losses."""
    chance, model = random.Random(seed), StoreModel()
    acts: tuple[Callable[[], None], ...] = (
        lambda: model.append([(chance.randrange(QUEUES), chance.randrange(LARGEST))] * 4),
        lambda: model.retention_deletes(ready=True),
        model.kill_and_start,
        lambda: model.lose_power_and_start(
            chance.randrange(1 << 32), chance.choice([(Page.LOST,), tuple(Page)]), names=True
        ),
    )
    try:
        model.begin()
        for _ in range(steps):
            chance.choice(acts)()
            model.the_log_is_the_list()
            model.queues_are_parts_of_the_list()
    finally:
        model.teardown()


@pytest.mark.parametrize("seed", range(scaled(24, 6)))
def test_ends_of_queues_stay_beside_retention_kills_and_power_losses(seed: int) -> None:
    story(seed)


def test_the_store_is_a_list() -> None:
    run(scaled(40), 25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_store_is_a_list_at_length() -> None:
    run(scaled(150), 50)
