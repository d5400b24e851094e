"""Queues in bulk: the same arrivals and the same bytes as record by record."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cometmq.store import dispatch as dispatch_module
from cometmq.store.dispatch import parse_arrivals
from cometmq.store.format.errors import StoreError
from cometmq.store.format.record import Message, encode
from cometmq.store.format.record_layout import UNQUEUED
from cometmq.store.format.results import Arrival
from cometmq.store.queue import (
    building as queue_building,
)
from cometmq.store.queue.building import ArrivalReader
from cometmq.tests.store.kit import QUEUE_FILE, START_MS, Kit, message
from cometmq.tests.store.test_dispatch import workload

NEVER = 1 << 60


def written(folder: Path, seed: int, count: int = 400) -> Kit:
    """A killed store with records of every kind, all of them in its queue files."""
    kit = Kit(folder, mapped_file_size_commit_log=64 << 10)
    kit.open()
    for batch in workload(seed, count):
        kit.store.writer.append_many(batch)
    kit.dispatch()
    kit.store.queue_table.write_out()
    kit.kill()
    return kit


@pytest.mark.parametrize("seed", range(3))
def test_many_arrivals_are_read_as_single_ones_are(tmp_path: Path, seed: int) -> None:
    kit = written(tmp_path, seed)
    kit.open_only()
    rng = random.Random(seed)
    log = kit.store.log
    reader = ArrivalReader(log)
    records = list(kit.records())
    for _ in range(60):
        first = rng.randrange(len(records))
        begin = records[first].physical_offset
        up_to = min(begin + rng.randrange(40_000), kit.store.log_end)
        count = rng.choice([1, 5, 1000])
        segment = log.segment_at(begin)
        looked_at = [
            r
            for r in records[first : first + count]
            if r.physical_offset + r.size <= min(up_to, segment.end)
        ]
        parsed = [parse_arrivals(segment, r.physical_offset - segment.start) for r in looked_at]
        expected = [a for found, flag in parsed if flag & 0xC not in UNQUEUED for a in found]
        end = looked_at[-1].physical_offset + looked_at[-1].size if looked_at else begin
        assert reader.read(begin, up_to, count) == (expected, end)
    kit.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_follower_dispatches_in_bulk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    leader = written(tmp_path / "leader", seed)
    leader.open_only()
    files: dict[bool, dict[str, bytes]] = {}
    arrivals: dict[bool, list[Arrival]] = {}
    for bulk in (False, True):
        monkeypatch.setattr(dispatch_module, "BULK_BYTES_MIN", 1 if bulk else NEVER)
        monkeypatch.setattr(dispatch_module, "BULK_RECORDS_MIN", 1)
        kit = Kit(tmp_path / str(bulk), mapped_file_size_commit_log=64 << 10)
        kit.open()
        seen: list[Arrival] = []
        rng = random.Random(seed)
        while kit.store.received_end < leader.store.log_end:
            data = leader.store.read_log(kit.store.received_end, rng.randrange(1, 9000))
            kit.store.append_raw(kit.store.received_end, data)
            seen += kit.store.writer.dispatch(kit.store.log_end, rng.choice([3, 10_000]))
        while kit.store.dispatched_offset < kit.store.log_end:
            seen += kit.store.writer.dispatch(kit.store.log_end, 50)
        assert kit.store.stats().dispatch_behind == 0
        kit.close()
        files[bulk], arrivals[bulk] = kit.queue_files(), seen
    assert arrivals[True] == arrivals[False]
    assert len(arrivals[True]) > 200
    assert files[True] == files[False]
    leader.store.close()


@pytest.mark.parametrize("kept_max", [1 << 20, 100, 0])
@pytest.mark.parametrize("waiting_max", [1 << 20, 1])
def test_recovery_makes_the_same_queues_however_much_fits_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_max: int, waiting_max: int
) -> None:
    kit = written(tmp_path / "store", 5)
    before = kit.queue_files()
    monkeypatch.setattr(queue_building, "KEPT_MAX", kept_max)
    monkeypatch.setattr(queue_building, "_WAITING_MAX", waiting_max)
    for path in sorted((kit.root / "consumequeue").rglob("0" * 20))[::2]:
        path.write_bytes(bytes(path.stat().st_size))
    report = kit.open()
    assert (report.units_from, report.dispatched_offset) == (0, report.log_end)
    assert report.units_rebuilt > 250
    kit.close()
    assert kit.queue_files() == before


def raw_log(kit: Kit, numbers: list[int], topic: str = "TopicTest") -> None:
    """A leader's bytes, with queue offsets as given."""
    for number in numbers:
        place = kit.store.log_end
        kit.store.append_raw(place, encode(message(b"x" * 9, topic=topic), number, place, START_MS))


def test_gaps_in_a_queue_are_filled_as_record_by_record(tmp_path: Path) -> None:
    """A follower that joined late: its queues begin above 0; and an unexplained gap."""
    kit = Kit(tmp_path / "store")
    kit.open()
    raw_log(kit, [40, 41, 45, 46, 46, 44, 60, 61])
    kit.dispatch()
    kit.store.queue_table.write_out()
    kit.kill()
    before = kit.queue_files()
    kit.open()
    assert kit.store.min_offset("TopicTest", 0) == 40
    kit.kill()
    assert kit.queue_files() == before


def test_an_invalid_topic_in_the_log_is_an_error(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store")
    kit.open()
    raw_log(kit, [0], topic="no/topic")
    raw_log(kit, [0], topic="Topic")
    kit.kill()
    queue = kit.root / "consumequeue" / "Topic" / "0"
    queue.mkdir(parents=True)
    size = len(encode(message(b"x" * 9, topic="Topic"), 0, 0, 0))
    first = len(encode(message(b"x" * 9, topic="no/topic"), 0, 0, 0))
    unit = first.to_bytes(8, "big") + size.to_bytes(4, "big") + bytes(8)
    (queue / f"{0:020d}").write_bytes(unit.ljust(QUEUE_FILE, b"\0"))
    with pytest.raises(StoreError, match="cannot have a queue: 'no/topic'"):
        kit.open()


def test_messages_of_one_queue_in_many_forms(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "store")
    kit.open()
    messages: list[Message] = [
        message(bytes([i]) * (i * 3), sys_flag=flag) for i in range(60) for flag in (0, 8)
    ]
    kit.store.writer.append_many(messages)
    kit.dispatch()
    kit.close()
    before = kit.queue_files()
    kit.open()
    kit.kill()
    kit.open()
    kit.close()
    assert kit.queue_files() == before
