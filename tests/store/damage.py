"""Damage in a store directory: applies it, undoes it, and locates the parts of records.

A damage function changes one file and returns the changed bytes. `Site` restores the file from a
copy, so that one unpacked directory serves many tests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.store.format.record import decode

BLANK_MAGIC = bytes.fromhex("cbd43194")


@dataclass(frozen=True)
class Place:
    """Bytes [begin, end) of a file."""

    file: Path
    begin: int
    end: int

    def part(self, begin: int, end: int) -> Place:
        return Place(self.file, self.begin + begin, self.begin + end)

    @property
    def data(self) -> bytes:
        with open(self.file, "rb") as file:
            file.seek(self.begin)
            return file.read(self.end - self.begin)

    def write(self, data: bytes) -> None:
        with open(self.file, "r+b") as file:
            file.seek(self.begin)
            file.write(data)


@dataclass(frozen=True)
class RecordPlace:
    """A record of the log and its parts."""

    whole: Place
    offset: int
    topic: str
    queue_id: int
    queue_offset: int
    body: Place
    properties: Place

    def field(self, begin: int, end: int) -> Place:
        return self.whole.part(begin, end)


# -- what can happen to bytes ---------------------------------------------------------------------


def flip(place: Place, bit: int = 0) -> None:
    data = bytearray(place.data)
    data[0] ^= 1 << bit
    place.write(bytes(data))


def zero(place: Place) -> None:
    assert any(place.data), "nothing would change"
    place.write(bytes(place.end - place.begin))


def put(place: Place, data: bytes) -> None:
    assert place.data != data, "nothing would change"
    place.write(data)


def duplicate(source: Place, over: Place) -> None:
    """Write one range over another one."""
    put(Place(over.file, over.begin, over.begin + source.end - source.begin), source.data)


def swap(first: Place, second: Place) -> None:
    """Two ranges next to each other change places."""
    assert first.end == second.begin
    left, right = first.data, second.data
    assert left != right
    Place(first.file, first.begin, second.end).write(right + left)


def cut(file: Path, length: int) -> None:
    with open(file, "r+b") as opened:
        opened.truncate(length)


# -- where things are -----------------------------------------------------------------------------


class Site:
    """A store directory with its records, for planting."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.segments = sorted((root / "commitlog").iterdir())
        self.records = list(self._records())
        self.blanks = list(self._blanks())

    def _records(self) -> Iterator[RecordPlace]:
        for path in self.segments:
            data = path.read_bytes()
            at = 0
            while data[at : at + 4] != b"\0" * 4 and data[at + 4 : at + 8] != BLANK_MAGIC:
                record = decode(data[at:])
                end = at + record.size
                topic_bytes = len(record.topic.encode()) + record.version
                properties = Place(path, end - len(record.properties), end)
                body_end = properties.begin - 2 - topic_bytes
                yield RecordPlace(
                    Place(path, at, end),
                    record.physical_offset,
                    record.topic,
                    record.queue_id,
                    record.queue_offset,
                    Place(path, body_end - len(record.body), body_end),
                    properties,
                )
                at = end

    def _blanks(self) -> Iterator[Place]:
        for path in self.segments:
            ends = [r.whole.end for r in self.records if r.whole.file == path]
            if ends and path.read_bytes()[ends[-1] + 4 : ends[-1] + 8] == BLANK_MAGIC:
                yield Place(path, ends[-1], ends[-1] + 8)

    def record(self, number: int) -> RecordPlace:
        return self.records[number]

    def with_body(self, least: int, number: int = 20) -> RecordPlace:
        """A record in the middle whose body has so many bytes."""
        return next(r for r in self.records[number:] if r.body.end - r.body.begin >= least)

    def neighbours(self) -> tuple[RecordPlace, RecordPlace]:
        """Two records in a row, the first one not longer, far from any end of a segment."""
        for first, second in zip(self.records[20:], self.records[21:], strict=False):
            sizes = [r.whole.end - r.whole.begin for r in (first, second)]
            if sizes[0] < sizes[1] and first.whole.file == second.whole.file:
                return first, second
        raise AssertionError("no such records")

    def in_properties(self, record: RecordPlace, text: bytes) -> Place:
        at = record.properties.data.index(text)
        return record.properties.part(at, at + len(text))

    def unit(self, topic: str, queue_id: int, number: int, kind: str = "consumequeue") -> Place:
        folder = self.root / kind / topic / str(queue_id)
        path = sorted(folder.iterdir())[0]
        return Place(path, number * 20, number * 20 + 20)

    def index(self, number: int = 0) -> Path:
        return sorted((self.root / "index").iterdir())[number]

    def slot(self, number: int, file: int = 0) -> Place:
        return Place(self.index(file), 40 + 4 * number, 44 + 4 * number)

    def used_slots(self) -> list[int]:
        data = self.index().read_bytes()
        return [n for n in range(100) if any(data[40 + 4 * n : 44 + 4 * n])]

    def entry(self, number: int, file: int = 0) -> Place:
        at = 40 + 4 * 100 + 20 * number
        return Place(self.index(file), at, at + 20)

    def timer(self, number: int, file: int = 0) -> Place:
        path = sorted((self.root / "timerlog").iterdir())[file]
        return Place(path, number * 52, number * 52 + 52)

    def wheel_slot(self) -> Place:
        """The first slot in use."""
        path = self.root / "timerwheel"
        data = path.read_bytes()
        at = len(data) - len(data.lstrip(b"\0"))
        return Place(path, at // 32 * 32, at // 32 * 32 + 32)

    def file(self, name: str) -> Place:
        path = self.root / name
        return Place(path, 0, path.stat().st_size)

    @contextmanager
    def damaged(self, plant: Callable[[Site], Place]) -> Iterator[Place]:
        """Plant, give the range that should be found, and take it back."""
        before: dict[Path, bytes] = {}
        wheel = self.root / "timerwheel"
        for path in self.root.rglob("*"):
            if path.is_file() and path != wheel:
                before[path] = path.read_bytes()
        slot = self.wheel_slot() if wheel.exists() else None
        was = slot.data if slot is not None else b""
        try:
            yield plant(self)
        finally:
            for path, data in before.items():
                if path.read_bytes() != data:
                    path.write_bytes(data)
            if slot is not None:
                slot.write(was)


def i32(value: int) -> bytes:
    return struct.pack(">i", value)
