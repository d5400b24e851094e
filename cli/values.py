"""Option values: topic types, permissions, durations."""

import re
from datetime import datetime

import click

from ..proto import v2

MIXED = -1
#: `--type` of a topic.
TOPIC_TYPES = {
    "normal": int(v2.NORMAL),
    "fifo": int(v2.FIFO),
    "delay": int(v2.DELAY),
    "transaction": int(v2.TRANSACTION),
    "mixed": MIXED,
    "priority": int(v2.PRIORITY),
    "lite": int(v2.LITE),
}
TOPIC_TYPE_NAMES = {number: name for name, number in TOPIC_TYPES.items()}

#: `--perm` of a topic.
PERMISSION_METAVAR = "none|read|write|rw"
PERMISSIONS = {"none": 0, "write": 2, "read": 4, "rw": 6}
_PERMISSION_NAMES = {0: "none", 2: "write", 4: "read", 6: "read, write"}

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 1}
_DURATION = re.compile(r"([0-9]{1,15})(ms|s|m|h|d|)")


def permission_name(perm: int) -> str:
    """Return the name of a permission."""
    return _PERMISSION_NAMES[perm & 6]


def duration_text(ms: int) -> str:
    """Return the shortest exact text: `5s`, `1500ms`, `2h`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS_MS[unit] == 0:
            return f"{ms // _UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def permission(text: str) -> int:
    """Parse `--perm`: `none`, `read`, `write`, `rw`, or RocketMQ's number."""
    word = text.lower()
    if word in PERMISSIONS:
        return PERMISSIONS[word]
    if word in {str(number) for number in PERMISSIONS.values()}:
        return int(word)
    raise click.BadParameter(f"'{text}' is not one of {', '.join(PERMISSIONS)}, 0, 2, 4, 6.")


def duration_ms(text: str) -> int:
    """Parse a number with a unit (`500ms`, `5s`, `1m`, `2h`); without a unit, milliseconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"'{text}' is not a duration such as 500ms, 5s, 1m or 2h.")
    return int(found[1]) * _UNITS_MS[found[2]]


def durations_ms(text: str) -> list[int]:
    """Parse durations separated by commas."""
    return [duration_ms(part) for part in text.split(",")]


def time_ms(text: str, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970.

    Accepted: ISO 8601 (local time without a zone), a duration before now (`-1h`), milliseconds.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii():
        return int(text)
    if text.startswith("-"):
        return max(0, now_ms - duration_ms(text[1:]))
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"'{text}' is not a time such as 2026-11-22T10:00, -1h or milliseconds since 1970."
        ) from None
