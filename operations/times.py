"""Durations and times, read and printed: one grammar for commands and the console.

duration   500ms, 30s, 5m, 1h30m, 7d; a number alone is in the unit that the reader names
time       2026-11-22, 2026-11-22T10:00, 2026-11-22T10:00:00.5Z, 2026-11-22T10:00+01:00;
           without a zone local time, or in the zone that the reader names
           -1h, +30s: this long before or after now; now
           1795000000000: milliseconds since 1970
"""

import re
from datetime import UTC, datetime, tzinfo

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DIGITS_MAX = 15
_NUMBER = rf"[0-9]{{1,{_DIGITS_MAX}}}(?:\.[0-9]{{1,6}})?"
_PART = re.compile(rf"({_NUMBER})(ms|d|h|m|s)")
_PARTS = re.compile(rf"(?:{_NUMBER}(?:ms|d|h|m|s))+")
_BARE = re.compile(_NUMBER)


def time_text(ms: int | None, timespec: str = "milliseconds", zone: tzinfo | None = None) -> str:
    """Return a time with its zone; `-` for none or 0. Without `zone` it is local time."""
    if not ms or ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return moment.isoformat(" ", timespec)


def duration_text(ms: int) -> str:
    """Return the shortest exact text: `5s`, `1500ms`, `2h`."""
    for unit, size in _UNITS_MS.items():
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def duration_ms(text: str, unit: str = "ms") -> int:
    """Parse a duration to milliseconds; `unit` is that of a number alone.

    Raises ValueError with a sentence.
    """
    text = text.strip()
    if _BARE.fullmatch(text):
        return round(float(text) * _UNITS_MS[unit])
    if _PARTS.fullmatch(text):
        return round(sum(float(n) * _UNITS_MS[name] for n, name in _PART.findall(text)))
    raise ValueError(f"'{text}' is not a duration such as 500ms, 5s, 1h30m or 7d.")


def time_ms(text: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Parse a time to milliseconds since 1970; a time without a zone is in `zone`, or local.

    Raises ValueError with a sentence.
    """
    text = text.strip()
    if text.isdecimal() and text.isascii() and len(text) <= _DIGITS_MAX:
        return int(text)
    if text == "now":
        return now_ms
    try:
        if text.startswith(("-", "+")):
            distance = duration_ms(text[1:])
            return max(0, now_ms - distance if text[0] == "-" else now_ms + distance)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=zone)
        return max(0, round(moment.timestamp() * 1_000))
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"'{text}' is not a time such as 2026-11-22T10:00, -1h or milliseconds since 1970."
        ) from None
