"""Raw logs for tests of the scanner and of what stands on it: any record, blanks, damage."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from cometmq.store.format.errors import RecordFormatError
from cometmq.store.format.record import (
    Message,
    Record,
    decode,
    encode,
    pack_host,
)
from cometmq.store.format.record_layout import (
    BLANK,
    MAGIC_BLANK,
)
from cometmq.store.scan.single import inspect, is_empty

TOPICS = ("Orders", "T", "Лента", "%RETRY%" + "g" * 180, "a-topic-of-24-characters")
HOSTS = (pack_host("10.0.0.1", 9876), pack_host("::1", 80))


def any_message(rng: random.Random, body_bytes_max: int = 300) -> Message:
    """A record of any form: version 1 or 2, IPv4 or IPv6 hosts, with or without a body."""
    names = rng.sample(["TAGS", "KEYS", "UNIQ_KEY", "x"], rng.randrange(5))
    text = "".join(f"{name}\x01{rng.randrange(9)}v{rng.randrange(99)}\x02" for name in names)
    return Message(
        rng.choice(TOPICS),
        rng.randrange(4),
        rng.randbytes(rng.choice([0, 1, rng.randrange(body_bytes_max)])),
        text.encode()[: rng.choice([None, None, None, -1])],
        flag=rng.randrange(-5, 5),
        sys_flag=rng.choice([0, 0, 1, 4, 8, 12]),
        born_timestamp_ms=rng.randrange(1 << 40),
        born_host=rng.choice(HOSTS),
        store_host=rng.choice(HOSTS),
        reconsume_times=rng.randrange(-1, 17),
        prepared_transaction_offset=rng.randrange(-1, 1 << 40),
    )


def build(messages: Iterable[Message], base: int, size: int = 0) -> bytearray:
    """Records one behind the other from offset `base` on; with `size` a whole segment with its
    blank, which must have room."""
    data = bytearray()
    for number, message in enumerate(messages):
        data += encode(message, number, base + len(data), 1_000 + number)
    if size:
        rest = size - len(data)
        data += BLANK.pack(rest, MAGIC_BLANK).ljust(rest, b"\0")
    return data


def plain(
    data: bytes | bytearray, base: int, start: int, end: int, check_crc: bool
) -> tuple[list[Record], int]:
    """What a walk that stops at the first damage must give: records, and where it stops."""
    view = memoryview(data)
    records = []
    while start < min(end, len(view)):
        try:
            if inspect(view, start, base, check_crc).blank:
                break
            record = decode(view[start:], check_crc)
        except RecordFormatError:
            break
        if "\0" in record.topic:
            break
        records.append(record)
        start += records[-1].size
    return records, start


def is_nothing(data: bytes | bytearray, position: int) -> bool:
    return is_empty(memoryview(data), position)


def hurt(rng: random.Random, data: bytearray, times: int) -> None:
    """Flip, clear, copy or cut, in place (a cut shortens)."""
    for _ in range(times):
        if not data:
            return
        at = rng.randrange(len(data))
        length = rng.randrange(1, 60)
        kind: str = rng.choice(["flip", "zero", "noise", "copy", "cut"])
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "zero":
            data[at : at + length] = bytes(len(data[at : at + length]))
        elif kind == "noise":
            data[at : at + length] = rng.randbytes(len(data[at : at + length]))
        elif kind == "copy":
            source = rng.randrange(len(data))
            part = data[source : source + length * 8]
            data[at : at + len(part)] = part[: len(data) - at]
        elif rng.random() < 0.3:
            del data[at:]


def fields_of(records: Sequence[Record]) -> list[tuple[object, ...]]:
    """What `columns_of` gives for the same records."""
    return [
        (
            *(r.physical_offset, r.size, r.version, r.body_crc, r.queue_id, r.flag, r.queue_offset),
            *(r.sys_flag, r.born_timestamp_ms, r.store_timestamp_ms, r.reconsume_times),
            *(r.prepared_transaction_offset, r.born_host, r.store_host),
            *(r.body, r.topic, r.properties),
        )
        for r in records
    ]
