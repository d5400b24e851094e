"""Apache's timer files through ours: read, written again from the timer topic, recovered.

`delay` and `delay-killed` hold delivered and pending timers, `timer-roll` a roll-over of the log,
roll units and messages that were due at once, `grpc` checkpoints, acknowledgements and recalls of a
proxy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.delay_levels import DelayOffsets, due_ms, queue_of
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.disk import Disk
from cometmq.store.format.properties import SCHEDULE_TOPIC, java_hash
from cometmq.store.format.record import Record, decode
from cometmq.store.format.record_layout import (
    MAGIC_BLANK,
)
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.checkpoint import TimerCheckpoint
from cometmq.store.timer.log import END, TimerLog
from cometmq.store.timer.rules import (
    DELETE_KEY,
    DELIVER_MS,
    OUT_MS,
    REAL_TOPIC,
    TIMER_TOPIC,
    UNIQUE_KEY,
    is_cancelled,
    rounded,
    slot_for,
)
from cometmq.store.timer.store import DUE, KNOWN, TimerStore
from cometmq.store.timer.unit import UNIT_BYTES, TimerUnit
from cometmq.store.timer.wheel import FILE_BYTES, SLOT_BYTES, Slot, TimerWheel, read_slots
from cometmq.tests.formats.cases import TIMED, dispatch_all, manifest, new_store, read_back, unpack


@pytest.fixture(params=TIMED)
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def root(case: str, tmp_path: Path) -> Iterator[Path]:
    root = unpack(case, tmp_path)
    yield root
    shutil.rmtree(tmp_path)  # a wheel takes 37 MiB


@pytest.fixture
def store(case: str, root: Path) -> Iterator[MessageStore]:
    store = new_store(case, root)
    store.open()
    dispatch_all(store)
    yield store
    store.close()


def timers_of(root: Path, store: MessageStore) -> TimerStore:
    return TimerStore(root, store.config, Disk(), store)


def stopped_ms(root: Path) -> int:
    """When the broker stopped: by the version of its last timer checkpoint."""
    return TimerCheckpoint.decode((root / "config" / "timercheck").read_bytes()).version_ms


def timer_files(root: Path) -> dict[str, bytes]:
    paths = [root / "timerwheel", root / "config" / "timercheck", *(root / "timerlog").iterdir()]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def timer_records(store: MessageStore) -> list[Record]:
    """The messages of the timer topic, in order."""
    end = store.max_offset(TIMER_TOPIC, 0)
    records: list[Record] = []
    while len(records) < end:
        found = store.get(TIMER_TOPIC, 0, len(records), 32)
        records += [decode(stored.data) for stored in found.records]
    return records


def units_of(log: TimerLog) -> dict[int, TimerUnit]:
    return dict(log.walk())


def test_every_unit_and_slot_encodes_to_its_own_bytes(root: Path, store: MessageStore) -> None:
    log = TimerLog(str(root / "timerlog"), store.config.mapped_file_size_timer_log, Disk())
    assert log.load() == ""
    files = {start: bytearray(log.file_bytes) for start in log.starts}
    walk = log.walk()
    for position, unit in walk:
        start = position - position % log.file_bytes
        files[start][position - start : position - start + UNIT_BYTES] = unit.encode()
    assert walk.reason == ""
    for start in log.starts[:-1]:
        at = log.file_bytes // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
        END.pack_into(files[start], at, log.file_bytes - at, 0, MAGIC_BLANK)
    for start, data in files.items():
        assert (root / "timerlog" / f"{start:020d}").read_bytes() == data
    log.close()
    wheel = bytearray(FILE_BYTES)
    with open(root / "timerwheel", "rb") as file:
        for index, slot in read_slots(file.fileno()):
            wheel[index * SLOT_BYTES : (index + 1) * SLOT_BYTES] = slot.encode()
            assert slot.time % (FILE_BYTES // SLOT_BYTES) == index
    assert (root / "timerwheel").read_bytes() == wheel
    check = (root / "config" / "timercheck").read_bytes()
    assert TimerCheckpoint.decode(check).encode()[:56] == check[:56]
    assert check[56:] == bytes(4096 - 56)


def without_checksums(data: bytes) -> bytes:
    """The bytes of a timer log file as Apache writes them: reserved fields are 0."""
    changed = bytearray(data)
    for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
        if data[at : at + 4] == UNIT_BYTES.to_bytes(4, "big"):
            changed[at + 44 : at + 52] = bytes(8)
    return bytes(changed)


def test_enqueueing_again_writes_the_same_files(
    root: Path, store: MessageStore, tmp_path: Path
) -> None:
    """From the messages of the timer topic and the enqueue clock that each unit recorded."""
    log = TimerLog(str(root / "timerlog"), store.config.mapped_file_size_timer_log, Disk())
    log.load()
    clock = {unit.physical_offset: unit.write_ms for unit in units_of(log).values()}
    log.close()
    (tmp_path / "new" / "config").mkdir(parents=True)
    again = timers_of(tmp_path / "new", store)
    again.recover(stopped_ms(root))
    write_ms = 0
    for record in timer_records(store):
        there = record.physical_offset in clock
        write_ms = clock.get(record.physical_offset, write_ms)
        properties = record.properties_dict
        out_ms = int(properties[OUT_MS])
        if DELIVER_MS in properties:
            assert rounded(int(properties[DELIVER_MS]), 1000) == out_ms
        assert (slot_for(out_ms, write_ms, store.config) is not None) == there
        answer = again.put(
            out_ms,
            write_ms,
            record.physical_offset,
            record.size,
            real_topic=properties[REAL_TOPIC],
            cancels=DELETE_KEY in properties,
        )
        assert (answer >= 0) == there
        assert there or answer == DUE
        assert (again.log.find(record.physical_offset) >= 0) == there
        if there:
            unit = again.log.read(answer)
            assert unit.topic_hash == java_hash(properties[REAL_TOPIC])
            assert again.put(out_ms, write_ms, record.physical_offset, record.size) == KNOWN, (
                "a message has one unit"
            )
    again.flush(0, len(clock), stopped_ms(root))
    again.close()
    made = timer_files(tmp_path / "new")
    for name, data in timer_files(root).items():
        new = without_checksums(made[name]) if name.startswith("timerlog") else made[name]
        assert name == "config/timercheck" or new == data, name


def delivered_keys(said: dict[str, Any]) -> set[str]:
    return {
        unit["properties"].get(UNIQUE_KEY, "")
        for topic, queues in said["queues"].items()
        for queue in queues.values()
        for unit in queue["units"]
        if topic != TIMER_TOPIC
    }


def test_recovery_equals_apaches(case: str, root: Path, store: MessageStore) -> None:
    """Nothing is changed; what is pending is what Apache had not delivered."""
    before = timer_files(root)
    check = TimerCheckpoint.decode(before["config/timercheck"])
    timers = timers_of(root, store)
    report = timers.recover(stopped_ms(root))
    assert timer_files(root) == before
    assert report.end == check.last_timer_log_flush_pos
    assert report.read_ms == check.last_read_ms
    said = read_back(case)
    assert report.queue_offset == said["queues"][TIMER_TOPIC]["0"]["max"]
    assert (report.slots_revised, report.slots_beyond, report.cut_bytes) == (0, 0, 0)
    records = {record.physical_offset: record for record in timer_records(store)}
    pending: set[str] = set()
    seen = 0
    for _, slot in timers.wheel.occupied():
        waiting = timers.units_at(slot.time * 1000)
        assert len(waiting.units) - len(waiting.cancellations) == slot.num
        keys = timers.cancelled_keys(waiting.cancellations)
        for unit in waiting.units + waiting.cancellations:
            record = records[unit.physical_offset]
            assert unit.size == record.size
            assert unit.rolled or unit.slot_ms == int(record.properties_dict[OUT_MS])
            seen += 1
        for unit in waiting.units:
            found = records[unit.physical_offset].properties_dict
            cancelled = is_cancelled(keys, found[UNIQUE_KEY], found[REAL_TOPIC])
            if slot.time * 1000 >= report.read_ms and not cancelled:
                pending.add(found[UNIQUE_KEY])
            elif not cancelled:
                assert found[UNIQUE_KEY] in delivered_keys(said)
    assert seen == report.units_walked == len(units_of(timers.log))
    assert not pending & delivered_keys(said)
    assert len(pending) == {"delay": 4, "delay-killed": 4, "timer-roll": 1104, "grpc": 0}[case]
    counts = {record.properties_dict[REAL_TOPIC] for record in records.values()}
    assert sum(timers.metrics.count(topic) for topic in counts) == len(pending)
    timers.close()


@pytest.mark.parametrize("checkpoint", ["kept", "behind"])
def test_a_lost_wheel_is_rebuilt_from_the_log(
    root: Path, store: MessageStore, checkpoint: str
) -> None:
    before = timer_files(root)
    os.unlink(root / "timerwheel")
    if checkpoint == "behind":
        (root / "config" / "timercheck").write_bytes(bytes(4096))
    timers = timers_of(root, store)
    report = timers.recover(stopped_ms(root))
    assert report.slots_revised == report.units_walked > 0
    assert report.queue_offset == (0 if checkpoint == "behind" else max_offset(store))
    timers.close()
    assert (root / "timerwheel").read_bytes() == before["timerwheel"]


def max_offset(store: MessageStore) -> int:
    return store.max_offset(TIMER_TOPIC, 0)


def test_a_lost_log_is_enqueued_again(root: Path, store: MessageStore) -> None:
    shutil.rmtree(root / "timerlog")
    timers = timers_of(root, store)
    report = timers.recover(stopped_ms(root))
    assert report.slots_beyond > 0
    assert report.lost_bytes > 0
    assert report.queue_offset == 0
    assert list(timers.wheel.occupied()) == []
    timers.close()


def test_units_without_a_message_are_cut(case: str, root: Path, store: MessageStore) -> None:
    """The commit log lost its end (power, asynchronous flush), the timer log did not."""

    class Shorter:
        log_end = manifest(case)["max_physical_offset"] // 2
        record_at = staticmethod(store.record_at)
        min_offset = staticmethod(store.min_offset)
        max_offset = staticmethod(store.max_offset)

    units = units_of_directory(root, store.config)
    kept = [unit for unit in units.values() if unit.physical_offset + unit.size <= Shorter.log_end]
    timers = TimerStore(root, store.config, Disk(), Shorter())
    report = timers.recover(stopped_ms(root))
    assert list(units_of(timers.log).values()) == kept
    assert report.queue_offset == len(kept) or case == "timer-roll"
    assert sum(slot.num for _, slot in timers.wheel.occupied()) == sum(
        -1 if unit.cancels else 1 for unit in kept
    )
    timers.close()


def units_of_directory(root: Path, config: StoreConfig) -> dict[int, TimerUnit]:
    log = TimerLog(str(root / "timerlog"), config.mapped_file_size_timer_log, Disk())
    log.load()
    units = units_of(log)
    log.close()
    return units


def test_the_example_of_the_format(tmp_path: Path) -> None:
    """docs/formats/store-format.md, section 15, E10."""
    unit = TimerUnit(-1, 1, 1_700_000_000_000, 10_000, 1234, 200, java_hash("TopicTest"))
    assert unit.encode().hex() == (
        "00000034ffffffffffffffff000000010000018bcfe5680000002710"
        "00000000000004d2000000c88e9876410000000000000000"
    )
    wheel = TimerWheel(str(tmp_path / "timerwheel"), 1000, Disk())
    wheel.put(unit.slot_ms, 0, 52, 2)
    assert wheel.index(unit.slot_ms) == 512_010
    slot = wheel.slot(unit.slot_ms)
    assert slot == Slot(1_700_000_010, 0, 52, 2)
    assert slot.encode().hex() == "000000006553f10a000000000000000000000000000000340000000200000000"


def test_levels_and_their_offsets(case: str, root: Path, store: MessageStore) -> None:
    offsets = DelayOffsets(root / "config" / "delayOffset.json", lambda: 7)
    offsets.load()
    before = (root / "config" / "delayOffset.json").read_text()
    assert offsets.render() == before
    found = 0
    for topic, queue_id in store.queues():
        if topic != SCHEDULE_TOPIC:
            continue
        end = store.max_offset(topic, queue_id)
        (stored,) = store.get(topic, queue_id, 0, 1).records
        record = decode(stored.data)
        level = int(record.properties_dict["DELAY"])
        assert queue_of(level) == queue_id
        assert stored.tags_code == due_ms(record.store_timestamp_ms, level)
        done = offsets.offset(level, 0, end)
        now_ms = stopped_ms(root)
        assert (done > 0) == (stored.tags_code <= now_ms) or case == "delay-killed"
        found += 1
    assert found == (18 if case.startswith("delay") else 0)
    offsets.save()
    assert (root / "config" / "delayOffset.json").read_text() == before, "nothing changed"
    offsets.set(4, 1)
    offsets.save()
    again = DelayOffsets(root / "config" / "delayOffset.json", lambda: 7)
    again.load()
    assert again.offset(4, 0, 9) == 1
    assert (root / "config" / "delayOffset.json.bak").read_text() == before
