"""Values that a person types into a form or a URL: numbers, choices, times. Raises CliError."""

from collections.abc import Mapping
from datetime import UTC, datetime

from ..operations.errors import CliError, Exit
from ..operations.times import time_ms
from .language import said

_SHOWN = 40


def whole(text: str, name: str, *, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Parse a whole number within bounds; an error names the field."""
    if not (text.isdecimal() and text.isascii() and len(text) < 20):
        raise bad("{} must be a whole number, but is '{}'.", name, text[:_SHOWN])
    value = int(text)
    if not least <= value <= most:
        raise bad("{} must be {} to {}.", name, least, most)
    return value


def choice(values: Mapping[str, int], text: str, what: str) -> int:
    """Return the value of one of several names."""
    if text not in values:
        raise bad("There is no {} '{}'.", what, text[:_SHOWN])
    return values[text]


def moment_ms(text: str, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970.

    Accepted: ISO 8601 (UTC without a zone, as browsers send it), `-1h`, milliseconds.
    """
    try:
        found = datetime.fromisoformat("" if text.isdecimal() else text)
    except ValueError:
        try:
            return time_ms(text, now_ms)
        except ValueError as error:
            raise bad(str(error)) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    try:
        return max(0, round(found.timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise bad("'{}' is not a time since 1970.", text[:_SHOWN]) from None


def bad(sentence: str, /, *given: object) -> CliError:
    """Return the error of a value that is not valid; `given` are the values of its `{}`."""
    return CliError(said(sentence, *given), Exit.USAGE)
