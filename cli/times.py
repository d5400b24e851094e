"""Durations and times as options of the command line (`operations/times.py`), with `--utc`."""

import time
from collections.abc import Callable
from datetime import UTC, tzinfo

import click

from ..operations import times

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
    return times.time_text(ms, timespec, _zone())


def duration_ms(text: str, unit: str = "ms") -> int:
    """Parse a duration to milliseconds; `unit` is that of a number alone.

    Raises click.BadParameter.
    """
    try:
        return times.duration_ms(text, unit)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def durations_ms(text: str) -> list[int]:
    """Parse durations separated by commas. Raises click.BadParameter."""
    return [duration_ms(part) for part in text.split(",")]


def time_ms(text: str, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970. Raises click.BadParameter."""
    try:
        return times.time_ms(text, now_ms, _zone())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
