"""Consume queue units that disagree with a sound log: every message is still read, unaltered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.lmq_queues import with_lmqs
from cometmq.store.format.properties import java_hash
from cometmq.store.format.record import decode
from cometmq.store.format.results import PutStatus
from cometmq.store.holdings import forget
from cometmq.store.queue import unit_repair
from cometmq.tests.store.kit import QUEUE_FILE, START_MS, Kit, message

UNITS = 45
PER_FILE = QUEUE_FILE // 20
ANSWER_BYTES = 4 << 20
READS_MAX = 2 * UNITS


def filled(root: Path, **options: Any) -> Kit:
    """Two queues over three queue files and several segments; the units are in the files."""
    kit = Kit(root, **options)
    kit.open()
    for index in range(UNITS):
        for queue_id in range(2):
            kit.write(b"%d %03d" % (queue_id, index), queue_id=queue_id, tags=f"T{index % 3}")
    kit.dispatch()
    settle(kit)
    return kit


def settle(kit: Kit) -> None:
    kit.store.queue_table.write_out()
    kit.store.queue_table.write_units({})  # drops the tails


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    kit = filled(tmp_path)
    yield kit
    kit.close()


def attach(kit: Kit, answer: bool = True) -> list[tuple[int, int]]:
    """Attach a scrub that gives this answer; return its list of reported records."""
    guard = Guard(answer)
    kit.store.blocks.guard(guard)
    return guard.asked


class Guard:
    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[tuple[int, int]] = []

    def will_repair(self, offset: int, size: int) -> bool:
        self.asked.append((offset, size))
        return self.answer

    def before_raw_read(self, begin: int, end: int) -> None:
        pass


class Units:
    """The queue files of queue 0 as one array of bytes."""

    def __init__(self, kit: Kit, topic: str = "TopicTest") -> None:
        self.paths = sorted((kit.root / "consumequeue" / topic / "0").iterdir())
        self.sound = self.data
        self.changed = bytearray(self.sound)

    @property
    def data(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.paths)

    def flip(self, number: int, byte: int) -> None:
        self.changed[number * 20 + byte] ^= 0xFF

    def flip_many(self, places: Iterable[tuple[int, int]]) -> None:
        for number, byte in places:
            self.flip(number, byte)

    def zero(self, first: int, stop: int) -> None:
        self.changed[first * 20 : stop * 20] = bytes(20 * (stop - first))

    def save(self) -> None:
        for at, path in enumerate(self.paths):
            path.write_bytes(self.changed[at * QUEUE_FILE : (at + 1) * QUEUE_FILE])


def read_all(kit: Kit, batch: int = 32, **options: Any) -> list[bytes]:
    """Read queue 0 in a bounded number of reads."""
    bodies, offset, store = [], 0, kit.store
    for _ in range(READS_MAX):
        result = store.get("TopicTest", 0, offset, batch, ANSWER_BYTES, **options)
        assert offset <= result.next_offset
        for stored in result.records:
            record = decode(stored.data)
            assert (record.queue_id, record.queue_offset) == (0, stored.queue_offset)
            bodies.append(record.body)
        offset = result.next_offset
        if offset == store.max_offset("TopicTest", 0):
            return bodies
    raise AssertionError(f"stalled at {offset}")


ALL = [b"0 %03d" % index for index in range(UNITS)]


def flips(number: int) -> list[Callable[[Units], None]]:
    return [lambda units, byte=byte: units.flip(number, byte) for byte in range(12)]  # type: ignore[misc]


DAMAGES: dict[str, list[Callable[[Units], None]]] = {
    "a byte of the physical offset or the size": flips(7),
    "a byte of the first unit": flips(0),
    "a byte of the first unit of a file": flips(PER_FILE),
    "a byte of the last unit of a file": flips(PER_FILE - 1),
    "zeros": [
        lambda units: units.zero(7, 8),
        lambda units: units.zero(0, 1),
        lambda units: units.zero(0, 5),
        lambda units: units.zero(15, 25),
        lambda units: units.zero(0, PER_FILE),
        lambda units: units.zero(PER_FILE, 2 * PER_FILE),
        lambda units: units.zero(0, UNITS - 1),
    ],
    "several units": [
        lambda units: units.flip_many((n, 6) for n in range(3, 40, 5)),
        lambda units: units.flip_many((n, 11) for n in (0, 1, 2, 20, 21, 40)),
        lambda units: units.flip_many((n, n % 12) for n in range(UNITS - 1)),
    ],
}


@pytest.mark.parametrize("scrubbed", [False, True])
@pytest.mark.parametrize("name", DAMAGES)
def test_every_message_is_read_and_the_units_are_restored(
    kit: Kit, name: str, scrubbed: bool
) -> None:
    asked = attach(kit) if scrubbed else []
    units = Units(kit)
    for at, damage in enumerate(DAMAGES[name]):
        units.changed = bytearray(units.sound)
        damage(units)
        units.save()
        before = kit.store.stats().queue_units_repaired
        assert read_all(kit, batch=(32, 1, 7)[at % 3]) == ALL
        assert units.data == units.sound
        assert kit.store.stats().queue_units_repaired > before
    assert asked == []


@pytest.mark.parametrize("name", DAMAGES)
def test_units_damaged_while_the_broker_is_stopped(tmp_path: Path, name: str) -> None:
    kit = filled(tmp_path)
    units = Units(kit)
    for damage in DAMAGES[name]:
        kit.close()
        units.changed = bytearray(units.sound)
        damage(units)
        units.save()
        kit.open()
        attach(kit)
        assert kit.store.min_offset("TopicTest", 0) == 0
        assert read_all(kit) == ALL
        assert units.data == units.sound
    kit.close()


@pytest.mark.parametrize("name", DAMAGES)
def test_time_and_position_queries_use_restored_units(tmp_path: Path, name: str) -> None:
    kit = Kit(tmp_path)
    kit.open()
    ends = []
    for index in range(UNITS):
        kit.now_ms = START_MS + 10 * index
        for queue_id in range(2):
            ends.append(kit.write(b"%d %03d" % (queue_id, index), queue_id=queue_id).end)
    kit.dispatch()
    settle(kit)
    units, store = Units(kit), kit.store
    places = [int.from_bytes(units.sound[n * 20 : n * 20 + 8], "big") for n in range(UNITS)]
    for damage in DAMAGES[name]:
        for number in (0, 7, 21, UNITS - 1):
            units.changed = bytearray(units.sound)
            damage(units)
            units.save()
            time_ms = START_MS + 10 * number
            assert store.reader.offset_by_time("TopicTest", 0, time_ms) == number
            assert store.reader.offset_by_time("TopicTest", 0, time_ms + 1, upper=True) == number
            assert store.reader.offset_by_position("TopicTest", 0, places[number]) == number
            found = store.reader.record_range("TopicTest", 0, number)
            assert found is not None
            assert found[0] == places[number]
    kit.close()


@pytest.mark.parametrize("byte", range(12, 20))
def test_a_damaged_tags_code_hides_no_message_from_unfiltered_readers(kit: Kit, byte: int) -> None:
    units = Units(kit)
    units.flip(7, byte)
    units.save()
    assert read_all(kit) == ALL


def test_filtered_readers_get_the_messages_of_zeroed_units(kit: Kit) -> None:
    units = Units(kit)
    units.zero(6, 12)
    units.save()
    wanted = frozenset({java_hash("T1")})
    assert read_all(kit, tag_codes=wanted) == ALL[1::3]
    assert units.data == units.sound


def test_a_unit_that_points_to_another_record_of_its_size_is_restored(kit: Kit) -> None:
    units = Units(kit)
    units.changed[7 * 20 : 8 * 20] = units.sound[8 * 20 : 9 * 20]
    units.save()
    assert read_all(kit) == ALL
    assert kit.store.stats().queue_units_repaired == 1


def test_repairs_are_logged_once_per_queue(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    units = Units(kit)
    units.flip(7, 6)
    units.flip(30, 6)
    units.save()
    assert read_all(kit) == ALL
    assert caplog.text.count("queue.unit_repaired topic=TopicTest queue=0") == 1
    assert "queue.record_missing" not in caplog.text
    assert kit.store.stats().queue_units_repaired == 2


def test_a_long_search_is_done_in_slices(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read walks a part of the log and returns what it has; the next one continues."""
    monkeypatch.setattr(unit_repair, "BUDGET_BYTES", 100)
    monkeypatch.setattr(unit_repair, "SLICE_BYTES", 100)
    units = Units(kit)
    units.zero(5, 30)
    units.save()
    first = kit.store.get("TopicTest", 0, 0, 32, ANSWER_BYTES)
    assert [stored.queue_offset for stored in first.records] == [0, 1, 2, 3, 4]
    assert first.next_offset == 5
    assert read_all(kit) == ALL
    assert units.data == units.sound


def test_a_queue_file_that_cannot_be_written(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(kit.store.queue_table, "overwrite", overwrite)
    units = Units(kit)
    units.zero(5, 30)
    units.save()
    assert read_all(kit) == ALL
    assert units.data == bytes(units.changed)
    monkeypatch.undo()


def test_a_record_damaged_in_the_log_is_reported_to_the_scrub(kit: Kit) -> None:
    """Readers wait while the log can be repaired, and skip only the record that is lost."""
    units = Units(kit)
    place = int.from_bytes(units.sound[7 * 20 : 7 * 20 + 8], "big")
    size = int.from_bytes(units.sound[7 * 20 + 8 : 7 * 20 + 12], "big")
    units.zero(6, 9)
    units.save()
    kit.flip_byte(place + 5)  # its magic
    asked = attach(kit)
    result = kit.store.get("TopicTest", 0, 0, 32, ANSWER_BYTES)
    assert (result.next_offset, len(result.records)) == (7, 7)
    result = kit.store.get("TopicTest", 0, 7, 32, ANSWER_BYTES)
    assert (result.next_offset, result.records) == (7, [])
    assert set(asked) == {(place, size)}
    attach(kit, answer=False)
    assert read_all(kit) == ALL[:7] + ALL[8:]
    kit.flip_byte(place + 5)
    kit.store.blocks.clear_damaged(0, 4096)
    assert read_all(kit) == ALL
    assert units.data == units.sound


def test_units_of_light_queues(tmp_path: Path) -> None:
    kit = Kit(tmp_path, enable_lmq=True, enable_multi_dispatch=True)
    kit.open()
    for index in range(30):
        sent = with_lmqs(message(b"%d" % index), ["%LMQ%a"] if index % 2 else ["%LMQ%b"])
        (result,) = kit.store.writer.append_many([sent])
        assert result.status is PutStatus.PUT_OK
    kit.dispatch()
    settle(kit)
    units = Units(kit, "%LMQ%a")
    damages: list[Callable[[], None]] = [
        lambda: units.zero(3, 9),
        lambda: units.flip(5, 7),
        lambda: units.flip(0, 11),
    ]
    for damage in damages:
        units.changed = bytearray(units.sound)
        damage()
        units.save()
        assert kit.queue_bodies("%LMQ%a") == [b"%d" % index for index in range(1, 30, 2)]
        assert units.data == units.sound
    kit.close()


def test_units_with_extensions(tmp_path: Path) -> None:
    """A restored unit holds the tags code itself when its extension address is lost."""
    kit = filled(tmp_path, enable_consume_queue_ext=True)
    units = Units(kit)
    units.zero(6, 12)
    units.flip(20, 6)
    units.save()
    assert read_all(kit) == ALL
    assert read_all(kit, tag_codes=frozenset({java_hash("T1")})) == ALL[1::3]
    assert units.data[20 * 20 :] == units.sound[20 * 20 :], "the address stays"
    kit.close()


def test_damage_behind_a_deleted_segment(tmp_path: Path) -> None:
    """Units of deleted records stay skipped, damaged ones behind them are restored."""
    kit = filled(tmp_path)
    store = kit.store
    first = store.log.segments[0]
    first.flushed = first.size
    store.log.drop_first()
    units = Units(kit)
    kept = next(
        number
        for number in range(UNITS)
        if int.from_bytes(units.sound[number * 20 : number * 20 + 8], "big") >= store.log_start
    )
    units.zero(kept, kept + 2)
    units.changed[(kept + 4) * 20 : (kept + 4) * 20 + 8] = bytes(8)
    units.save()
    assert read_all(kit) == ALL[kept:]
    assert units.data == units.sound
    while store.queue_table.trimmed_to < store.log_start:
        store.queue_table.trim(store.log_start)
    assert store.min_offset("TopicTest", 0) == kept
    kit.close()


def test_the_oldest_offset_is_found_among_damaged_units(tmp_path: Path) -> None:
    """After retention the first readable unit is searched by bisection."""
    for number in range(UNITS - 1):
        for damage in ("zeros", "negative"):
            kit = filled(tmp_path / f"{number}-{damage}") if number % 4 == 3 else None
            if kit is None:
                continue
            units = Units(kit)
            if damage == "zeros":
                units.zero(number, number + 1)
            else:
                units.flip(number, 0)
            kit.close()
            first = kit.root / "commitlog" / f"{0:020d}"
            first.unlink()
            forget(kit.root, kit.disk)  # retention would have recorded it
            units.save()
            kit.now_ms = START_MS
            kit.open()
            kept = next(
                n
                for n in range(UNITS)
                if int.from_bytes(units.sound[n * 20 : n * 20 + 8], "big") >= kit.store.log_start
            )
            assert kit.store.min_offset("TopicTest", 0) in (kept, kept - (number < kept))
            kit.close()
