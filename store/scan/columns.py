"""Records as columns: the fixed fields of many records and the positions of their variable parts.

`columns_at` reads the records at known positions and checks them as `single.inspect` checks one
(except the body's checksum, which `check_bodies` verifies). One gather takes the fixed part of
every record; only records with IPv6 hosts, whose later fields lie 12 or 24 bytes further on, take a
second (docs/formats/store-format.md, sections 2.1-2.5).
"""

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ..format.checksum import crc32
from ..format.record import CRC_NAME, CRC_TAIL_BYTES, property_crc_ok
from ..format.record_layout import (
    AT,
    BODY_CRC,
    BODY_LENGTH,
    BORN_HOST,
    BORN_HOST_V6,
    BORN_TIMESTAMP,
    CRC_MASK,
    FIXED_V4,
    FLAG,
    HOST_V6_MORE,
    MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET,
    PREPARED_TRANSACTION_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    RECORD_BYTES_MIN,
    SIZE,
    STORE_HOST,
    STORE_HOST_V6,
    STORE_TIMESTAMP,
    SYS_FLAG,
)
from .dtypes import record_fields
from .raw import BytesTable, Flags, Integers, RawBytes

_AFTER_STORE_HOST: Final = FIXED_V4.size - AT[RECONSUME_TIMES]
_PREPARED_AT: Final = AT[PREPARED_TRANSACTION_OFFSET] - AT[RECONSUME_TIMES]
_LENGTH_AT: Final = AT[BODY_LENGTH] - AT[RECONSUME_TIMES]
#: The fixed part with IPv4 hosts, without the hosts.
_FIXED: Final = record_fields(
    size=SIZE,
    magic=MAGIC,
    body_crc=BODY_CRC,
    queue_id=QUEUE_ID,
    flag=FLAG,
    queue_offset=QUEUE_OFFSET,
    physical_offset=PHYSICAL_OFFSET,
    sys_flag=SYS_FLAG,
    born_timestamp=BORN_TIMESTAMP,
    store_timestamp=STORE_TIMESTAMP,
    reconsume_times=RECONSUME_TIMES,
    prepared_transaction_offset=PREPARED_TRANSACTION_OFFSET,
    body_length=BODY_LENGTH,
)
_CRC_NAME: Final = np.frombuffer(CRC_NAME, np.uint8)


@dataclass(slots=True)
class Columns:
    """Records in log order, one entry each in every column. Positions and starts are relative to
    the scanned view; they are copies and stay valid without it."""

    position: Integers
    physical_offset: Integers
    size: Integers
    magic: Integers  #: MAGIC_V1 or MAGIC_V2 (signed, as in format/record.py)
    body_crc: Integers
    queue_id: Integers
    flag: Integers
    queue_offset: Integers
    sys_flag: Integers
    born_timestamp: Integers
    born_host_start: Integers  #: 8 bytes, or 20 with bit 4 of the system flag
    store_timestamp: Integers
    store_host_start: Integers  #: 8 bytes, or 20 with bit 5
    reconsume_times: Integers
    prepared_transaction_offset: Integers
    body_start: Integers
    body_length: Integers
    topic_start: Integers
    topic_length: Integers
    topic_id: Integers  #: number of the topic in the walk's table (`Walk.topics`)
    properties_start: Integers
    properties_length: Integers
    crc_ok: Flags  #: false only in a permissive walk

    def __len__(self) -> int:
        return len(self.position)

    def take(self, which: Any) -> "Columns":
        """Return a selection of records: a slice, a mask or an array of indices."""
        return Columns(*(getattr(self, field.name)[which] for field in fields(self)))


def check_records(raw: RawBytes, columns: Columns) -> Flags:
    """Return whether each record ends in its own checksum and it matches
    (`enabledAppendPropCRC`)."""
    data = raw.data
    ends = (columns.position + columns.size).tolist()
    starts = columns.position.tolist()
    sound = [property_crc_ok(data[a:b]) for a, b in zip(starts, ends, strict=True)]
    return np.array(sound, np.bool_)


def check_sealed(raw: RawBytes, columns: Columns) -> Flags:
    """Return whether each record matches its own checksum, or its body's if it has none of its
    own."""
    right = check_bodies(raw, columns)
    long_enough = columns.properties_length >= CRC_TAIL_BYTES
    tails = np.where(long_enough, columns.position + columns.size - CRC_TAIL_BYTES, 0)
    names = raw.blocks(tails, len(CRC_NAME)).view(np.uint8).reshape(-1, len(CRC_NAME))
    sealed = np.flatnonzero(long_enough & (names == _CRC_NAME).all(axis=1))
    if len(sealed):
        right[sealed] &= check_records(raw, columns.take(sealed))
    return right


class TopicTable(BytesTable):
    """Topics by number; `names` are the decoded ones, "" for bytes that are not text: not UTF-8, or
    with a NUL, which only a lost page leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._unreadable: list[int] = []

    def number_of(self, name: str) -> int:
        """Return the number of a topic name."""
        number = self.number(name.encode())
        self._decode()
        return number

    def readable(self, numbers: Integers) -> int:
        """Return how many of these from the first on are text."""
        self._decode()
        if self._unreadable:
            bad = np.isin(numbers, self._unreadable)
            if bad.any():
                return int(np.argmax(bad))
        return len(numbers)

    def _decode(self) -> None:
        for value in self.values[len(self.names) :]:
            name = "" if b"\0" in value else value.decode(errors="replace")
            if name.encode() != value:
                self._unreadable.append(len(self.names))
                name = ""
            self.names.append(name)


def check_bodies(raw: RawBytes, columns: Columns) -> Flags:
    """Return whether the checksum of each body matches; an empty body has none."""
    data = raw.data
    ends = (columns.body_start + columns.body_length).tolist()
    sound = [
        crc32(data[start:end]) for start, end in zip(columns.body_start.tolist(), ends, strict=True)
    ]
    same: Flags = (np.array(sound, np.int64) & CRC_MASK) == columns.body_crc
    same |= columns.body_length == 0
    return same


def columns_at(
    raw: RawBytes, base: int, positions: Integers, topics: TopicTable
) -> tuple[Columns, int]:
    """Return the records at `positions`, and how many of them from the first on are whole.

    The rest is undefined. Each position must have a size field that is at least RECORD_BYTES_MIN
    and ends within the buffer.
    """
    head = raw.blocks(positions, FIXED_V4.size).view(_FIXED)
    fixed: dict[str, Integers] = {name: head[name].astype(np.int64) for name in _FIXED.names or ()}
    flags, ends = fixed["sys_flag"], positions + fixed["size"]
    ok = (fixed["size"] >= RECORD_BYTES_MIN) & (ends <= raw.size)
    ok &= (fixed["magic"] == MAGIC_V1) | (fixed["magic"] == MAGIC_V2)
    ok &= fixed["physical_offset"] == positions + base
    born_more = np.where(flags & BORN_HOST_V6, HOST_V6_MORE, 0)
    store_more = np.where(flags & STORE_HOST_V6, HOST_V6_MORE, 0)
    store_host = positions + AT[STORE_HOST] + born_more
    body_start = positions + FIXED_V4.size + born_more + store_more
    ok &= body_start + 3 <= ends
    wide = np.flatnonzero(ok & ((born_more + store_more) > 0))
    if len(wide):
        fixed["store_timestamp"][wide] = raw.signed64(
            born_more[wide] + (positions[wide] + AT[STORE_TIMESTAMP])
        )
        rest = body_start[wide] - _AFTER_STORE_HOST
        fixed["reconsume_times"][wide] = raw.unsigned(rest, 4).astype(np.int32)
        fixed["prepared_transaction_offset"][wide] = raw.signed64(rest + _PREPARED_AT)
        fixed["body_length"][wide] = raw.unsigned(rest + _LENGTH_AT, 4).astype(np.int32)
    body_end = body_start + fixed["body_length"]
    ok &= (fixed["body_length"] >= 0) & (body_end + 3 <= ends)
    # From here on positions of invalid records are replaced by a readable one.
    topic_start = np.where(ok, body_end, 0) + 1
    topic_length = raw.unsigned(topic_start - 1, 1)
    second = np.flatnonzero(ok & (fixed["magic"] == MAGIC_V2))
    topic_length[second] = raw.unsigned(topic_start[second] - 1, 2)
    topic_start[second] += 1
    properties_start = topic_start + topic_length + 2
    properties_length = ends - properties_start
    ok &= properties_length >= 0
    ok &= raw.unsigned(np.where(ok, properties_start - 2, 0), 2) == properties_length
    whole = len(ok) if ok.all() else int(np.argmin(ok))
    topic_id = np.zeros(len(positions), np.int64)
    topic_id[:whole] = topics.numbers(raw, topic_start[:whole], topic_length[:whole])
    whole = topics.readable(topic_id[:whole])
    columns = Columns(
        position=positions,
        physical_offset=fixed["physical_offset"],
        size=fixed["size"],
        magic=fixed["magic"],
        body_crc=fixed["body_crc"],
        queue_id=fixed["queue_id"],
        flag=fixed["flag"],
        queue_offset=fixed["queue_offset"],
        sys_flag=flags,
        born_timestamp=fixed["born_timestamp"],
        born_host_start=positions + AT[BORN_HOST],
        store_timestamp=fixed["store_timestamp"],
        store_host_start=store_host,
        reconsume_times=fixed["reconsume_times"],
        prepared_transaction_offset=fixed["prepared_transaction_offset"],
        body_start=body_start,
        body_length=fixed["body_length"],
        topic_start=topic_start,
        topic_length=topic_length,
        topic_id=topic_id,
        properties_start=properties_start,
        properties_length=properties_length,
        crc_ok=np.ones(len(positions), np.bool_),
    )
    return columns, whole
