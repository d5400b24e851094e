"""Message properties and values derived from them. Pure functions.

    name 0x01 value 0x02  name 0x01 value 0x02 ...        UTF-8 (docs/formats/store-format.md, 2.4)

The writer ends every pair with 0x02. The reader splits at 0x02 and uses a part only if it has at
least 3 bytes, a name and a value: empty names and values exist on disk but are not read, so the
encoded bytes are kept wherever bit identity matters. Of a repeated name the last one counts. The
tags code of a queue unit follows section 3.2.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

PROPERTIES_BYTES_MAX: Final = 32_767  # the length field is a signed i16
TAGS: Final = "TAGS"
DELAY: Final = "DELAY"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: RocketMQ's default delay levels 1-18 (docs/formats/store-format.md, section 11.1).
_DELAY_SECONDS = "1 5 10 30 60 120 180 240 300 360 420 480 540 600 1200 1800 3600 7200"
DELAY_LEVELS_MS: Final = tuple(1000 * int(seconds) for seconds in _DELAY_SECONDS.split())

_NAME_END: Final = "\x01"
_PAIR_END: Final = "\x02"
_PART_CHARS_MIN: Final = 3
_LONG_MAX: Final = (1 << 63) - 1
_DIGITS_MAX: Final = len(str(_LONG_MAX))


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode in the order of the mapping.

    Raises ValueError when a name or value holds a separator: the reader would decode other
    properties.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count(_PAIR_END) != len(properties) or text.count(_NAME_END) != len(properties):
        _check_separators(properties)
    return text.encode()


def _check_separators(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if _NAME_END in name or _PAIR_END in name or _PAIR_END in value:
            raise ValueError(f"The property {name!r} contains a separator (0x01 or 0x02).")


def decode_properties(data: bytes) -> dict[str, str]:
    """Decode as RocketMQ does; malformed UTF-8 becomes the replacement character."""
    properties: dict[str, str] = {}
    for part in data.decode("utf-8", "replace").split(_PAIR_END):
        if len(part) < _PART_CHARS_MIN:
            continue
        name, separator, value = part.partition(_NAME_END)
        if separator and name and value:
            properties[name] = value
    return properties


def property_value(data: bytes, name: bytes) -> bytes:
    """Return the value that `decode_properties` gives for `name`, still encoded; b"" if absent.

    Searches instead of splitting: a pair begins only at the start or after a 0x02.
    """
    mark = name + b"\x01"
    end = len(data)
    while True:
        mark_at = data.rfind(b"\x02" + mark, 0, end)
        start = mark_at + 1 if mark_at >= 0 else 0
        if mark_at < 0 and not data.startswith(mark):
            return b""
        start += len(mark)
        stop = data.find(b"\x02", start)
        value = data[start:] if stop < 0 else data[start:stop]
        if value and len(mark) + len(value) >= _PART_CHARS_MIN:
            return value
        if mark_at < 0:
            return b""
        end = mark_at + 1


def whole_number(text: str | bytes) -> int | None:
    """Return the number from 0 to 2^63-1 that a property holds; None for any other text (a sign, a
    blank, a larger number, digits that are not ASCII)."""
    if len(text) > _DIGITS_MAX or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number <= _LONG_MAX else None


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 31 * h + c over UTF-16 code units, as a signed 32-bit
    number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


#: Cache of tag codes by the encoded tags. Cleared when full. Never holds a key with a separator.
KNOWN_CODES: Final[dict[bytes, int]] = {}
_KNOWN_CODES_MAX: Final = 4096
TAGS_NAME: Final = b"TAGS\x01"


def tags_code(topic: str, properties: bytes, store_timestamp_ms: int) -> int:
    """Return the third field of the queue unit: the hash of the tags, or the due time of a
    scheduled record."""
    if topic == SCHEDULE_TOPIC:
        level = _delay_level(properties)
        if level > 0:
            return store_timestamp_ms + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    if TAGS_NAME not in properties:
        return 0
    tags = property_value(properties, b"TAGS")
    if not tags:
        return 0
    code = KNOWN_CODES.get(tags)
    if code is None:
        code = java_hash(tags.decode("utf-8", "replace"))
        if len(KNOWN_CODES) >= _KNOWN_CODES_MAX:
            KNOWN_CODES.clear()
        if b"\x01" not in tags:
            KNOWN_CODES[tags] = code
    return code


_DELIVERY_TIMES: Final = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")


def is_delayed(properties: bytes) -> bool:
    """Return whether the message has a delay level or a delivery time."""
    if b"DEL" not in properties:
        return False
    return _delay_level(properties) > 0 or any(
        property_value(properties, name) for name in _DELIVERY_TIMES
    )


def waits(properties: bytes) -> bool:
    """Return whether the sender waits for flush and replicas (WAIT, true unless "false")."""
    return b"WAIT\x01" not in properties or property_value(properties, b"WAIT") != b"false"


def _delay_level(properties: bytes) -> int:
    value = property_value(properties, DELAY.encode())
    try:
        return int(value) if value else 0
    except ValueError:
        return 0
