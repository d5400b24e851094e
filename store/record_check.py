"""Check of a record before a reader returns it: is it the record that was stored?

| part | compared with |
| --- | --- |
| lengths | the size of the record |
| body | its CRC-32 |
| everything | the checksum at the end of the properties, if there is one (`enabledAppendPropCRC`) |
| topic | the topic of the queue |
| TAGS | the tags code of the unit; if they differ, the index decides |

The reader compares size, physical offset, queue id and queue offset with the unit. Other properties
(KEYS, those of the user) are covered only by the checksum at their end; `store verify` compares
KEYS with the index. A record of a light queue has the topic and the tags of its own queue, whose
reader compares them.

A record whose TAGS do not match the unit's tags code is damaged if the index has it under its
unique key and not under its tag. Otherwise the unit may be the damaged one, and the record is
returned. Both are counted.
"""

import operator
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from .format.checksum import crc32
from .format.index_file import key_hash
from .format.properties import (
    KNOWN_CODES,
    SCHEDULE_TOPIC,
    TAGS_NAME,
    property_value,
    tags_code,
)
from .format.record import CRC_NAME, CRC_TAIL_BYTES, property_crc_ok
from .format.record_layout import (
    BODY_LENGTH,
    CHECKED_FIELDS,
    CRC_MASK,
    FIXED,
    FIXED_V4,
    HOSTS_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_TIMESTAMP,
    physical_offset,
)
from .format.topic_names import is_lmq
from .queue.consume_queue import ConsumeQueue

_LENGTH_16: Final = struct.Struct(">H")
_CRC_NAME_AT: Final = slice(-CRC_TAIL_BYTES, -CRC_TAIL_BYTES + len(CRC_NAME))
#: Up to this size a copy of the body is cheaper than a view of it.
_COPIED_MAX: Final = 1 << 16
_LENGTH_MAX: Final = 0xFFFF
_PAIR_END: Final = 2
_TAGS_MAX: Final = 4096
#: Index entries that are examined for one record: a common tag has many.
_STEPS_MAX: Final = 10_000
#: Returns the physical offsets of the index entries of a hash and a range of store times.
FindEntries = Callable[[int, int, int], Iterator[int]]


class RecordCheck:
    """The check of one store; called on the thread that reads."""

    def __init__(self, *, sealed: bool = False) -> None:
        """`sealed`: records are written with a checksum of their own (`enabledAppendPropCRC`)."""
        self.sealed = sealed
        #: Damaged records that were reached, by part; each read counts.
        self.mismatches: Counter[str] = Counter()
        self._tags: dict[int, bytes] = {}
        #: The index of the store, if there is one.
        self.find_entries: FindEntries | None = None

    def wrong_part(self, queue: ConsumeQueue, record: bytes, code: int) -> str:
        """Return the part that is not as it was stored, or "". The record has the size of the unit,
        and `code` is the unit's tags code."""
        magic, crc, sys_flag, _, length = CHECKED_FIELDS.unpack_from(record)
        end = FIXED_V4.size + length
        field = queue.topic_field
        properties_at = end + len(field) + _LENGTH_16.size
        # The common record, in the fewest operations: every receive and pull runs them.
        if (
            not sys_flag & HOSTS_V6
            and not self.sealed
            and magic == queue.topic_magic
            and 0 <= length <= _COPIED_MAX
            and record[end:properties_at]
            == field + _LENGTH_16.pack(len(record) - properties_at & _LENGTH_MAX)
            and record[_CRC_NAME_AT] != CRC_NAME
            and (not length or crc32(record[FIXED_V4.size : end]) & CRC_MASK == crc)
            and len(record) - properties_at <= _LENGTH_MAX
        ):
            at = record.find(self._tags.get(code, TAGS_NAME), properties_at)
            if at < 0:
                if not code:
                    return ""
            elif code in self._tags and (at == properties_at or record[at - 1] == _PAIR_END):
                return ""
        return self._wrong_part(queue, record, code)

    def _wrong_part(self, queue: ConsumeQueue, record: bytes, code: int) -> str:
        """Return the same for any record."""
        magic, crc, sys_flag, stored_ms, length = CHECKED_FIELDS.unpack_from(record)
        begin = FIXED_V4.size
        if sys_flag & HOSTS_V6:
            fixed = FIXED[sys_flag >> 4 & 3]
            if len(record) < fixed.size:
                return "lengths"
            values = fixed.unpack_from(record)
            begin, stored_ms, length = fixed.size, values[STORE_TIMESTAMP], values[BODY_LENGTH]
        end = begin + length
        light = is_lmq(queue.topic)
        if magic != queue.topic_magic and not (light and magic in (MAGIC_V1, MAGIC_V2)):
            return "magic"
        topic = queue.topic_field
        if light:
            size = 1 if magic == MAGIC_V1 else 2
            size += int.from_bytes(record[end : end + size], "big")
        else:
            size = len(topic)
        properties_at = end + size + 2
        if length < 0 or len(record) - properties_at != int.from_bytes(
            record[properties_at - 2 : properties_at], "big"
        ):
            return "lengths"
        if not light and record[end : end + size] != topic:
            return "topic"
        if record[_CRC_NAME_AT] == CRC_NAME:
            return "" if property_crc_ok(record) else "record"
        if self.sealed and _lost_its_checksum(record, properties_at):
            return "record"
        if length and crc32(memoryview(record)[begin:end]) & CRC_MASK != crc:
            return "body"
        if light or not (code or record.find(TAGS_NAME, properties_at) >= 0):
            return ""
        properties = record[properties_at:]
        if tags_code(queue.topic, properties, stored_ms) == code:
            self._note_tags(code, property_value(properties, b"TAGS"))
            return ""
        if queue.topic == SCHEDULE_TOPIC:
            return ""
        return "tags" if self._lacks_tag(queue.topic, properties, record, stored_ms) else ""

    def _note_tags(self, code: int, tags: bytes) -> None:
        """Keep the tags of a code, to find them in further records without parsing."""
        if tags and KNOWN_CODES.get(tags) == code:
            if len(self._tags) >= _TAGS_MAX:
                self._tags.clear()
            self._tags[code] = b"%b%b\x02" % (TAGS_NAME, tags)

    def _lacks_tag(self, topic: str, properties: bytes, record: bytes, stored_ms: int) -> bool:
        """Return whether the index has the record under its unique key, and not under its tag."""
        self.mismatches["tags_code"] += 1
        unique, tag = (property_value(properties, name) for name in (b"UNIQ_KEY", b"TAGS"))
        place = physical_offset(record)
        tagged = [
            self._is_indexed(f"{topic}{sign}{key.decode(errors='replace')}", place, stored_ms)
            for sign, key in (("#", unique), ("#T#", tag))
        ]
        return tagged == [True, False]

    def _is_indexed(self, key: str, place: int, stored_ms: int) -> bool | None:
        """Return whether the index has the record under a key; None if that would take too
        long."""
        if self.find_entries is None:
            return None
        entries = self.find_entries(key_hash(key), stored_ms, stored_ms)
        for _ in range(_STEPS_MAX):
            offset = next(entries, None)
            if offset is None or offset == place:
                return offset is not None
        return None


def _lost_its_checksum(record: bytes, properties_at: int) -> bool:
    """Return whether a record without its own checksum had one: a part of it is left, or the
    properties are damaged. Records of before the option was set are well-formed."""
    tail = record[-CRC_TAIL_BYTES:]
    alike = sum(map(operator.eq, tail, CRC_NAME))
    if 2 * alike > len(CRC_NAME) or tail[len(CRC_NAME) : -1].isdigit():
        return True
    properties = record[properties_at:]
    try:
        properties.decode()
    except UnicodeDecodeError:
        return True
    pairs = properties.removesuffix(b"\x02").split(b"\x02") if properties else []
    return b"\0" in properties or not all(b"\x01" in pair for pair in pairs)
