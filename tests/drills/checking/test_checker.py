"""The checker and the second reader of the store detect what they must detect."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from cometmq.drills import logwalk
from cometmq.tests.drills import checker
from cometmq.tests.harness.journal import AckCounter, Journal, Promises


def record(offset: int, queue_offset: int, identity: str, topic: bytes = b"t") -> bytes:
    properties = f"UNIQ_KEY\x01{identity}\x02TAGS\x01red\x02".encode()
    tail = struct.pack(">i", 1) + b"x" + bytes([len(topic)]) + topic
    tail += struct.pack(">h", len(properties)) + properties
    head = struct.pack(">iiqqi", 3, 0, queue_offset, offset, 0)
    size = 12 + len(head) + 8 + 8 + 8 + 8 + 12 + len(tail)
    return struct.pack(">iII", size, logwalk.MAGIC_V1, 0) + head + bytes(44) + tail


def write_log(folder: Path, identities: list[str], segment: int = 300) -> None:
    """Write a log of small segments that each end with a blank record."""
    folder.mkdir(parents=True)
    offset, data = 0, bytearray(segment)
    for number, identity in enumerate(identities):
        one = record(offset, number, identity)
        if offset % segment + len(one) + 8 > segment:
            at = offset % segment
            struct.pack_into(">iI", data, at, segment - at, logwalk.MAGIC_BLANK)
            (folder / f"{offset - at:020}").write_bytes(data)
            offset, data = offset - at + segment, bytearray(segment)
            one = record(offset, number, identity)
        data[offset % segment : offset % segment + len(one)] = one
        offset += len(one)
    (folder / f"{offset - offset % segment:020}").write_bytes(data)


def write_queue(store: Path, units: list[bytes]) -> None:
    folder = store / "consumequeue" / "t" / "3"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{0:020}").write_bytes(b"".join(units) + bytes(400))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_log(tmp_path / "commitlog", [f"id{n}" for n in range(9)])
    write_queue(tmp_path, logwalk.expected_queues(tmp_path / "commitlog")["t", 3])
    return tmp_path


def test_walk_crosses_segments_and_blanks(store: Path) -> None:
    found = list(logwalk.walk(store / "commitlog"))
    assert [one.properties["UNIQ_KEY"] for one in found] == [f"id{n}" for n in range(9)]
    assert len(logwalk.segments(store / "commitlog")) > 2
    assert found[0].tags_code == 112785  # Java's "red".hashCode()


def test_equal_queues_have_no_difference(store: Path) -> None:
    assert logwalk.queue_differences(store) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda units: units[:-1], "differs"),
        (lambda units: [*units[:4], units[5], units[4], *units[6:]], "unit 4"),
        (lambda units: [*units, units[-1]], "units after"),
    ],
)
def test_a_changed_queue_is_reported(store: Path, change: object, word: str) -> None:
    units = logwalk.expected_queues(store / "commitlog")["t", 3]
    write_queue(store, change(units))  # type: ignore[operator]
    assert word in logwalk.queue_differences(store)[0]


def test_a_changed_log_is_reported(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_log(other, [f"id{n}" for n in range(9)])
    assert logwalk.log_difference(store / "commitlog", other) == ""
    path = logwalk.segments(other)[1]
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # the body's CRC, which the walk does not check
    path.write_bytes(data)
    assert "differs at byte 8" in logwalk.log_difference(store / "commitlog", other)


def test_losses_phantoms_duplicates_and_moves_are_reported(store: Path) -> None:
    promises = Promises(
        attempted={f"id{n}" for n in range(1, 11)},
        acknowledged={"id1": 1, "id2": 7, "id10": 10},
    )
    verdict = checker.check_log(promises, logwalk.walk(store / "commitlog"), "t")
    assert (verdict.lost, verdict.phantom, verdict.moved) == (["id10"], ["id0"], ["id2"])
    assert not verdict.sound
    twice = checker.check_deliveries(promises, Counter({"id1": 2, "id2": 1, "id10": 1}))
    assert twice.duplicated == ["id1"]
    assert twice.sound


def test_reading_the_journal_skips_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal, counter = Journal(path), AckCounter(path)
    journal.attempt("A")
    journal.unknown("A", "UNAVAILABLE because")
    journal.acknowledged("A", 5)
    assert counter.poll() == 1
    journal.close()
    with path.open("a") as file:
        file.write("k B 1")
    promises = Promises.read(path)
    assert promises.acknowledged == {"A": 5}
    assert promises.unknown == {"A": 1}
    assert promises.reasons == {"UNAVAILABLE": 1}
    assert counter.poll() == 1
