"""The index written entry by entry, straight from the format's description: what the bulk one is
held against (docs/formats/store-format.md, section 4)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from cometmq.store.format.record import Record

HEADER_BYTES, ENTRY_BYTES = 40, 20
ROLLBACK = 0xC


def java_hash(text: str) -> int:
    value = 0
    for high, low in zip(*[iter(text.encode("utf-16-be", "surrogatepass"))] * 2, strict=True):
        value = (31 * value + high * 256 + low) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def keys_of(record: Record) -> Iterator[str]:
    if record.sys_flag & 0xC == ROLLBACK:
        return
    found = record.properties_dict
    if "UNIQ_KEY" in found:
        yield f"{record.topic}#{found['UNIQ_KEY']}"
    for token in found.get("KEYS", "").split(" "):
        if token:
            yield f"{record.topic}#{token}"
    if "TAGS" in found:
        yield f"{record.topic}#T#{found['TAGS']}"


class PlainFile:
    def __init__(self, slots: int, entries: int, end_offset: int = 0, end_ms: int = 0) -> None:
        self.slots, self.entries = slots, entries
        self.data = bytearray(HEADER_BYTES + 4 * slots + ENTRY_BYTES * entries)
        self.begin_ms = self.end_ms = end_ms
        self.begin_offset = self.end_offset = end_offset
        self.used = 0
        self.count = 1

    def put(self, hash_: int, offset: int, store_ms: int) -> bool:
        if self.count >= self.entries:
            return False
        slot_at = HEADER_BYTES + hash_ % self.slots * 4
        (old,) = struct.unpack_from(">i", self.data, slot_at)
        if old <= 0 or old > self.count:
            old = 0
        seconds = (store_ms - self.begin_ms) // 1000
        if self.begin_ms <= 0 or seconds < 0:
            seconds = 0
        seconds = min(seconds, (1 << 31) - 1)
        at = HEADER_BYTES + 4 * self.slots + ENTRY_BYTES * self.count
        struct.pack_into(">iqii", self.data, at, hash_, offset, seconds, old)
        struct.pack_into(">i", self.data, slot_at, self.count)
        if self.count <= 1:
            self.begin_offset, self.begin_ms = offset, store_ms
        self.used += old == 0
        self.count += 1
        self.end_offset, self.end_ms = offset, store_ms
        return True

    def bytes(self) -> bytes:
        header = (self.begin_ms, self.end_ms, self.begin_offset, self.end_offset)
        struct.pack_into(">qqqqii", self.data, 0, *header, self.used, self.count)
        return bytes(self.data)


@dataclass
class PlainIndex:
    slots: int
    entries: int
    files: list[PlainFile] = field(default_factory=list)

    def put(self, text: str, offset: int, store_ms: int) -> None:
        if not self.files:
            self.files.append(PlainFile(self.slots, self.entries))
        last = self.files[-1]
        if not last.put(key_hash(text), offset, store_ms):
            self.files.append(PlainFile(self.slots, self.entries, last.end_offset, last.end_ms))
            assert self.files[-1].put(key_hash(text), offset, store_ms)

    def add(self, record: Record) -> None:
        for text in keys_of(record):
            self.put(text, record.physical_offset, record.store_timestamp_ms)
