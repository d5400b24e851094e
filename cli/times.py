"""Durations and times of the command line, read and printed: one grammar for all options.

duration   500ms, 30s, 5m, 1h30m, 7d; a number alone is in the unit that the option names
time       2026-11-22, 2026-11-22T10:00, 2026-11-22T10:00:00.5Z, 2026-11-22T10:00+01:00;
           without a zone local time, with --utc UTC
           -1h, +30s: this long before or after now; now
           1795000000000: milliseconds since 1970
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

import click

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DIGITS_MAX = 15
_NUMBER = rf"[0-9]{{1,{_DIGITS_MAX}}}(?:\.[0-9]{{1,6}})?"
_PART = re.compile(rf"({_NUMBER})(ms|d|h|m|s)")
_PARTS = re.compile(rf"(?:{_NUMBER}(?:ms|d|h|m|s))+")
_BARE = re.compile(_NUMBER)
_UTC_KEY = "cometmq.utc"
#: For the help of options.
TIME_FORMS = "2026-11-22T10:00 (local time, or with a zone), -1h, or milliseconds since 1970"


def keep_utc(ctx: click.Context, _parameter: click.Parameter, is_set: bool) -> None:
    """Keep the value of `--utc`."""
    ctx.meta[_UTC_KEY] = is_set


def _zone() -> tzinfo | None:
    """Return the zone of times without one; None: that of this machine."""
    ctx = click.get_current_context(silent=True)
    return UTC if ctx is not None and ctx.meta.get(_UTC_KEY) else None


def time_text(ms: int | None, timespec: str = "milliseconds") -> str:
    """Return a time with its zone, in local time or with --utc in UTC; `-` for none or 0."""
    if not ms or ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC).astimezone(_zone())
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

    Raises click.BadParameter.
    """
    text = text.strip()
    if _BARE.fullmatch(text):
        return round(float(text) * _UNITS_MS[unit])
    if _PARTS.fullmatch(text):
        return round(sum(float(n) * _UNITS_MS[name] for n, name in _PART.findall(text)))
    raise click.BadParameter(f"'{text}' is not a duration such as 500ms, 5s, 1h30m or 7d.")


def durations_ms(text: str) -> list[int]:
    """Parse durations separated by commas. Raises click.BadParameter."""
    return [duration_ms(part) for part in text.split(",")]


def time_ms(text: str, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970. Raises click.BadParameter."""
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
        if moment.tzinfo is None and (zone := _zone()):
            moment = moment.replace(tzinfo=zone)
        return max(0, round(moment.timestamp() * 1_000))
    except (ValueError, OverflowError, OSError, click.BadParameter):
        raise click.BadParameter(
            f"'{text}' is not a time such as 2026-11-22T10:00, -1h or milliseconds since 1970."
        ) from None


def present_ms() -> int:
    """Return the time of the system's clock in milliseconds."""
    return time.time_ns() // 1_000_000


def moment(value: str | int) -> int:
    """Convert a time to milliseconds since 1970: the type of an option or argument.

    Raises click.BadParameter.
    """
    return value if isinstance(value, int) else time_ms(value, present_ms())


def duration(unit: str, *, least: str = "0s", most: str = "") -> Callable[[str], int]:
    """Return the type of an option that is a duration in milliseconds.

    `unit` is that of a number alone; `least` and `most` are limits.
    """

    def convert(text: str) -> int:
        found = duration_ms(text, unit)
        if found < duration_ms(least):
            raise click.BadParameter(f"{text} is less than {least}.")
        if most and found > duration_ms(most):
            raise click.BadParameter(f"{text} is more than {most}.")
        return found

    return convert
