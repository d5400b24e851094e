"""Recovery of pop state from a log: Apache's directory, bounded steps, bounds of the journal."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.journal.core import PopJournal
from cometmq.broker.journal.recovery import ReviveReader
from cometmq.broker.journal.revive_codec import (
    REVIVE_GROUP,
    AckRecord,
    BatchKey,
    CheckpointRecord,
    revive_topic,
)
from cometmq.broker.offsets.consumer_offsets import ConsumerOffsets
from cometmq.tests.broker.journal.journal_world import REVIVE_QUEUES, TOPIC, World, new_core
from cometmq.tests.formats.cases import new_store, unpack

APACHE = revive_topic("DefaultCluster")


def test_messages_in_flight_are_read_from_apaches_directory(tmp_path: Path) -> None:
    """By Apache's offsets two deliveries are open: it commits a queue's last one only after the
    next. Everything else was acknowledged or revived.
    """
    root = unpack("grpc", tmp_path)
    store = new_store("grpc", root)
    store.open()
    try:
        offsets = ConsumerOffsets(root / "config" / "consumerOffset.json", lambda: 1)
        offsets.load()
        core = new_core()
        reader = ReviveReader(
            store,
            core,
            APACHE,
            lambda topic, queue: offsets.get(topic, REVIVE_GROUP, queue),
            lambda _group, _offset: False,
        )
        reader.watch(range(8))
        while reader.step(7):
            core.validate()
        places = reader.revive_offsets()
        found = {
            (book.topic, book.queue_id, offset): (one.pop_ms, one.invisible_ms, one.surfaced)
            for book in core.all_books()
            for offset, one in book.open.items()
        }
        last = {queue: store.max_offset(APACHE, queue) for queue in range(8)}
    finally:
        store.close()
    assert found == {
        ("acc-normal-29e9d431e340", 1, 0): (1795255700771, 10_000, True),
        ("%RETRY%acc-gid-a60f5c03e25e_acc-normal-30e51d9df24d", 0, 0): (
            1795255756897,
            10_000,
            True,
        ),
    }
    assert reader.timer_offset == 115
    assert places == last
    committed = {queue: offsets.get(APACHE, REVIVE_GROUP, queue) for queue in range(8)}
    assert core.revive_mark(4, places[4]) == committed[4] == 9
    assert core.revive_mark(5, places[5]) == committed[5] == 1


def deliver(core: PopJournal, start: int, count: int, pop_ms: int) -> None:
    """Return a batch of a queue."""
    book = core.book("t", "g", 0)
    core.delivered(book, list(range(start, start + count)), pop_ms, 60_000, 0)


def test_a_batch_waits_for_its_acknowledgements() -> None:
    core = new_core()
    deliver(core, 0, 4, 1_000)
    book = core.book("t", "g", 0)
    assert not core.take(1_999, 10).size
    for offset in range(3):
        core.settled(book, offset)
    (one,) = core.take(2_000, 10).checkpoints
    assert one.record() == CheckpointRecord(
        BatchKey("t", "g", 0, 0, 1_000), 60_000, [0, 1, 2, 3], 0b0111
    )
    core.checkpoint_written(one, 7)
    assert core.timer_mark(8) == 7
    core.settled(book, 3)
    assert core.timer_mark(8) == 7, "the ack is not written"
    batch = core.take(2_000, 10)
    assert [done.offsets_of(done.acks) for done in batch.acks] == [[3]]
    core.acks_written(one)
    assert core.timer_mark(8) == 8
    core.validate()


def test_a_batch_larger_than_a_checkpoint_is_split() -> None:
    core = new_core()
    deliver(core, 0, 70, 1_000)
    batch = core.take(2_000, 10)
    assert [len(one.offsets) for one in batch.checkpoints] == [32, 32, 6]
    assert core.open_count == 70
    core.put_back(batch)
    core.validate()


def test_waiting_batches_are_bounded() -> None:
    core = new_core()
    for n in range(9):
        deliver(core, n, 1, 1_000 + n)
    assert [one.start for one in core.take(1_010, 100).checkpoints] == [0, 1, 2, 3]


def test_a_clock_set_back_does_not_delay_writes() -> None:
    core = new_core()
    deliver(core, 0, 1, 5_000)
    assert len(core.take(4_999, 10).checkpoints) == 1


def test_finished_batches_behind_an_open_one_are_swept() -> None:
    core = new_core()
    book = core.book("t", "g", 0)
    deliver(core, 0, 1, 0)
    for n in range(1, 30_000):
        deliver(core, n, 1, 0)
        if n % 1_000 == 0:
            for timer_offset, one in enumerate(core.take(1_000, 2_000).checkpoints, n):
                core.checkpoint_written(one, timer_offset)
            for offset in range(max(1, n - 1_000), n + 1):
                core.settled(book, offset)
            for one in core.take(1_000, 2_000).acks:
                core.acks_written(one)
    assert dict(core.sizes())["written"] < 10_000
    assert core.timer_mark(40_000) == 1_000


def test_a_deleted_group_is_removed() -> None:
    core = new_core()
    deliver(core, 0, 3, 0)
    core.delivered(core.book("t", "other", 0), [5], 0, 60_000, 0)
    core.forget(group="g")
    assert core.open_count == 1
    core.drop_empty()
    assert [book.group for book in core.all_books()] == ["other"]
    core.validate()


def test_records_of_unknown_checkpoints_are_not_copied() -> None:
    core = new_core()
    key = BatchKey("t", "g", 0, 0, 1)
    assert not core.wants(CheckpointRecord(key, 10, [0]))
    assert not core.wants(AckRecord(key, [0]))
    deliver(core, 0, 1, 1)
    assert core.wants(CheckpointRecord(key, 60_000, [0]))
    assert core.wants(AckRecord(key, [0]))
    core.settled(core.book("t", "g", 0), 0)
    assert not core.wants(CheckpointRecord(key, 60_000, [0]))


def test_acknowledged_offsets_below_the_consumer_offset_or_before_a_rewind_are_dropped() -> None:
    world = World()
    for _ in range(2):
        world.pop(0, [0, 0], 60_000)
        world.now_ms += 1_000
        world.write(10)
    for offset in range(4):
        world.now_ms += 10
        world.ack(0, offset)
        world.write(10)
    core = world.recovered(len(world.log.messages), {})
    book = core.book("t", "g", 0)
    assert sorted(book.consumed) == [0, 1, 2, 3]
    core.prune(book, 1)
    assert sorted(book.consumed) == [1, 2, 3]
    core.prune(book, 0, book.consumed[3][0])  # the delivery counts, not its acknowledgement
    assert sorted(book.consumed) == [2, 3]
    core.prune(book, 9)
    assert not core.consuming


def test_a_reader_behind_the_mark_continues_at_the_mark() -> None:
    world = World()
    marks: dict[tuple[str, int], int] = {}
    core = new_core()
    reader = world.read(world.log, core, marks)
    for _ in range(6):
        world.pop(0, [0], 60_000)
        world.now_ms += 1_000
        world.write(10)
    assert reader.behind()
    assert reader.step(1)
    marks["rmq_sys_wheel_timer", 0] = 5
    assert not reader.step(1_000)
    assert sorted(core.book("t", "g", 0).open) == [0, 5]
    assert not reader.behind()
    assert set(reader.revive_offsets()) == set(range(REVIVE_QUEUES))
    assert TOPIC != APACHE


def test_the_timer_mark_waits_for_a_copy_that_is_not_passed() -> None:
    """A short one goes to the revive topic at once, its ack to the timers: both are read again."""
    world = World()
    world.pop(0, [0], 900)
    world.write(10)
    assert world.log.max_offset("rmq_sys_wheel_timer", 0) == 0
    world.ack(0, 0)
    world.write(10)
    assert world.log.max_offset("rmq_sys_wheel_timer", 0) == 1
    world.save()
    core = world.recovered(len(world.log.messages), world.saved.marks)
    assert core.open_count == 0
    world.watch()
    world.save()
    assert world.saved.marks["rmq_sys_wheel_timer", 0] == 1
    core = world.recovered(len(world.log.messages), world.saved.marks)
    assert core.open_count == 0


def test_the_next_leader_writes_a_missing_ack() -> None:
    """A change was written and the ack of the old checkpoint was not: the next leader writes it."""
    world = World()
    world.pop(0, [0, 0], 60_000)
    world.now_ms += 1_000
    world.write(10)
    world.change(0, 1, 90_000, suspended=True)
    world.write(10)
    core = world.recovered(2, {})
    core.read_everything()
    batch = core.take(world.now_ms, 10)
    assert [one.offsets_of(one.acks) for one in batch.acks] == [[1]]
    assert [one.start for one in core.book("t", "g", 0).open.values()] == [0, 1]
    core.put_back(batch)
    core.validate()


def test_acknowledged_batches_are_dropped_while_the_log_is_not_writable() -> None:
    core = PopJournal(stay_ms=1_000, margin_ms=3_000, buffer_max=5)
    book = core.book("t", "g", 0)
    core.delivered(book, list(range(4)), 1_000, 60_000, 0)
    for number in range(10_000):
        offset = 100 + number
        core.delivered(book, [offset], 1_000 + number, 60_000, 0)
        core.settled(book, offset)
        core.put_back(core.take(1_000 + number, 1, everything=True))
    assert core.buffered < 5_000
    core.validate()
    batch = core.take(20_000, 10, everything=True)
    assert [one.offsets for one in batch.urgent] == [[0, 1, 2, 3]]
