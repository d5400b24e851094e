"""Second reader of the store's files, written from the format alone, without product code.

It reads the commit log of a stopped broker and computes the content of every consume queue
(docs/formats/store-format.md, sections 2.1, 2.6, 3.1 and 3.2). The drills compare the result with
the files.
"""

from __future__ import annotations

import mmap
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
UNIT = struct.Struct(">qiq")
NOT_DISPATCHED = (0x4, 0xC)  # prepared and rollback types of sysFlag, section 3.4


@dataclass(frozen=True, slots=True)
class Found:
    """One record of the log."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    body: bytes
    properties: dict[str, str]

    @property
    def tags_code(self) -> int:
        """Return Java's String.hashCode of the tags, sign extended; 0 without tags."""
        value = 0
        for unit in struct.iter_unpack(">H", self.properties.get("TAGS", "").encode("utf-16-be")):
            value = (31 * value + unit[0]) & 0xFFFFFFFF
        return value - (1 << 32) if value >= 1 << 31 else value


def segments(folder: Path) -> list[Path]:
    """Return the files of a file queue in order."""
    return sorted(path for path in folder.iterdir() if path.name.isdigit())


def walk(folder: Path) -> Iterator[Found]:
    """Yield every record, up to the first position without one."""
    for path in segments(folder):
        data, base, at = _mapped(path), int(path.name), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic == MAGIC_BLANK:
                break
            if magic not in (MAGIC_V1, MAGIC_V2) or size <= 0:
                return
            record = _decode(data, at, size, magic)
            if record.offset != base + at:
                raise AssertionError(
                    f"the record at {base + at} says that it is at {record.offset}"
                )
            yield record
            at += size


def walk_bytes(data: bytes) -> Iterator[Found]:
    """Yield the records of a copied range of a log: an archived tail."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">iI", data, at)
        if size <= 0 or at + size > len(data):
            return
        if magic in (MAGIC_V1, MAGIC_V2):
            yield _decode(data, at, size, magic)
        at += size


def _mapped(path: Path) -> mmap.mmap:
    """Map a file without reading it: a segment is 1 GiB, most of it unwritten."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _decode(data: mmap.mmap | bytes, at: int, size: int, magic: int) -> Found:
    queue_id, _flag, queue_offset, offset, sys_flag = struct.unpack_from(">iiqqi", data, at + 12)
    born = 20 if sys_flag & 0x10 else 8
    store = 20 if sys_flag & 0x20 else 8
    place = at + 48 + born + 8 + store + 12
    (length,) = struct.unpack_from(">i", data, place)
    body = data[place + 4 : place + 4 + length]
    place += 4 + length
    form = ">h" if magic == MAGIC_V2 else ">B"
    (length,) = struct.unpack_from(form, data, place)
    place += struct.calcsize(form)
    topic = data[place : place + length].decode()
    place += length
    (length,) = struct.unpack_from(">h", data, place)
    text = data[place + 2 : place + 2 + length].decode()
    if place + 2 + length != at + size:
        raise AssertionError(f"the record at {offset} does not fill its {size} bytes")
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, one, value = pair.partition("\x01")
        if one:
            properties[name] = value
    return Found(offset, size, topic, queue_id, queue_offset, sys_flag, body, properties)


def expected_queues(folder: Path) -> dict[tuple[str, int], list[bytes]]:
    """Return the content of each consume queue as rebuilt from the log."""
    queues: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for record in walk(folder):
        if record.sys_flag & 0xC in NOT_DISPATCHED:
            continue
        units = queues[record.topic, record.queue_id]
        if record.queue_offset != len(units):
            raise AssertionError(
                f"{record.topic}/{record.queue_id}: offset {record.queue_offset} after {len(units)}"
            )
        units.append(UNIT.pack(record.offset, record.size, record.tags_code))
    return dict(queues)


def queue_differences(store: Path) -> list[str]:
    """Return a line for every consume queue that differs from its rebuild."""
    expected = expected_queues(store / "commitlog")
    wrong = []
    folder = store / "consumequeue"
    for (topic, queue_id), units in sorted(expected.items()):
        files = folder / topic / str(queue_id)
        data = b"".join(p.read_bytes() for p in segments(files)) if files.exists() else b""
        want = b"".join(units)
        if data[: len(want)] != want:
            have = next((i for i, u in enumerate(units) if data[i * 20 : i * 20 + 20] != u), -1)
            wrong.append(f"{topic}/{queue_id}: unit {have} of {len(units)} differs")
        if data[len(want) :].strip(b"\0"):
            wrong.append(f"{topic}/{queue_id}: units after the {len(units)} that the log gives")
    known = {f"{topic}/{queue_id}" for topic, queue_id in expected}
    for files in folder.glob("*/*"):
        name = f"{files.parent.name}/{files.name}"
        if name not in known and any(p.read_bytes().strip(b"\0") for p in segments(files)):
            wrong.append(f"{name}: units without a record in the log")
    return wrong


def log_end(folder: Path) -> int:
    """Return the end of the last record."""
    end = 0
    for record in walk(folder):
        end = record.offset + record.size
    return end


def log_difference(one: Path, other: Path) -> str:
    """Describe the first difference of two commit logs; empty if they are identical.

    Compares every byte up to the end of the last record, blank records included. Space allocated
    after that is not part of the log.
    """
    ends = log_end(one), log_end(other)
    if ends[0] != ends[1]:
        return f"the logs end at {ends[0]} and {ends[1]}"
    names = [[path.name for path in segments(f) if int(path.name) < ends[0]] for f in (one, other)]
    if names[0] != names[1]:
        return f"the segments are {names[0]} and {names[1]}"
    for name in names[0]:
        left, right = _mapped(one / name), _mapped(other / name)
        length = min(len(left), ends[0] - int(name))
        if left[:length] != right[:length]:
            at = next(i for i in range(length) if left[i] != right[i])
            return f"segment {name} differs at byte {at}"
    return ""
